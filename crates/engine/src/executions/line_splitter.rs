//! Runs in: server (no capabilities).
//!
//! Splits chunks of output into whole lines, up to what the outcome keeps.

use bytes::Bytes;
use cloche_model::{OutputChunk, StreamName};

/// A line, or what was left at the end.
pub(crate) type Line = (StreamName, Bytes);

/// Holds the unfinished line of each stream.
#[derive(Default)]
pub(crate) struct LineSplitter {
    stdout: PartialLine,
    stderr: PartialLine,
}

#[derive(Default)]
struct PartialLine {
    /// Bytes given out as lines.
    given: usize,
    /// The line that has no newline yet.
    partial: Vec<u8>,
}

impl LineSplitter {
    /// The lines that this chunk completes.
    pub(crate) fn push_chunk(&mut self, chunk: &OutputChunk) -> Vec<Line> {
        let side = self.partial_line(chunk.stream);
        let taken = &chunk.bytes[..chunk.kept.min(chunk.bytes.len())];
        let Some(last) = taken.iter().rposition(|&byte| byte == b'\n') else {
            side.partial.extend_from_slice(taken);
            return Vec::new();
        };
        let mut whole = std::mem::take(&mut side.partial);
        whole.extend_from_slice(&taken[..=last]);
        side.partial.extend_from_slice(&taken[last + 1..]);
        side.given += whole.len();
        split_lines(chunk.stream, Bytes::from(whole))
    }

    /// What was captured of a stream and has not been given out: the unfinished line, and whatever
    /// did not come as chunks.
    pub(crate) fn take_rest(&mut self, stream: StreamName, captured: &Bytes) -> Vec<Line> {
        let side = self.partial_line(stream);
        side.partial = Vec::new();
        let rest = captured.slice(side.given.min(captured.len())..);
        side.given += rest.len();
        split_lines(stream, rest)
    }

    /// The unfinished lines, where nothing else was captured.
    pub(crate) fn take_unfinished(&mut self) -> Vec<Line> {
        let (stdout, stderr) =
            (std::mem::take(&mut self.stdout.partial), std::mem::take(&mut self.stderr.partial));
        let mut lines = split_lines(StreamName::Stdout, Bytes::from(stdout));
        lines.extend(split_lines(StreamName::Stderr, Bytes::from(stderr)));
        lines
    }

    fn partial_line(&mut self, stream: StreamName) -> &mut PartialLine {
        match stream {
            StreamName::Stdout => &mut self.stdout,
            StreamName::Stderr => &mut self.stderr,
        }
    }
}

fn split_lines(stream: StreamName, mut bytes: Bytes) -> Vec<Line> {
    let mut lines = Vec::new();
    while !bytes.is_empty() {
        let end = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |at| at + 1);
        lines.push((stream, bytes.split_to(end)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::{
        collection::vec,
        prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest},
    };

    use super::*;

    fn chunk(bytes: &[u8]) -> OutputChunk {
        OutputChunk { stream: StreamName::Stdout, bytes: bytes.to_vec(), kept: bytes.len() }
    }

    #[test]
    fn a_partial_line_waits_for_its_end() {
        let mut splitter = LineSplitter::default();
        assert_eq!(splitter.push_chunk(&chunk(b"a")), []);
        let lines = splitter.push_chunk(&chunk(b"b\nc\nd"));
        assert_eq!(
            lines.iter().map(|(_, line)| &line[..]).collect::<Vec<_>>(),
            [&b"ab\n"[..], b"c\n"]
        );
        let rest = splitter.take_rest(StreamName::Stdout, &Bytes::from_static(b"ab\nc\nd"));
        assert_eq!(rest, [(StreamName::Stdout, Bytes::from_static(b"d"))]);
    }

    #[test]
    fn bytes_that_the_outcome_does_not_keep_are_not_held() {
        let mut splitter = LineSplitter::default();
        assert_eq!(splitter.push_chunk(&OutputChunk { kept: 4, ..chunk(b"abcdefgh\n") }), []);
        assert_eq!(splitter.take_rest(StreamName::Stdout, &Bytes::from_static(b"abcd")).len(), 1);
    }

    proptest! {
        #[test]
        fn however_it_is_cut_the_bytes_and_lines_are_the_same(
            chunks in vec(vec(any::<u8>().prop_map(|b| if b < 64 { b'\n' } else { b }), 0..20), 0..20),
            cap in 0_usize..300,
        ) {
            let all: Vec<u8> = chunks.concat();
            let captured = &all[..all.len().min(cap)];
            let (mut splitter, mut left) = (LineSplitter::default(), cap);
            let mut lines = Vec::new();
            for piece in &chunks {
                let kept = piece.len().min(left);
                left -= kept;
                lines.extend(splitter.push_chunk(&OutputChunk { kept, ..chunk(piece) }));
            }
            lines.extend(splitter.take_rest(StreamName::Stdout, &Bytes::copy_from_slice(captured)));
            let expected: Vec<_> = captured.split_inclusive(|&b| b == b'\n').collect();
            prop_assert_eq!(lines.len(), expected.len());
            prop_assert!(lines.iter().zip(expected).all(|((_, line), want)| &line[..] == want));
        }
    }
}
