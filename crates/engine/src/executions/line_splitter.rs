//! Runs in: server (no capabilities).
//!
//! Splits chunks of output into whole lines. A line knows how many of its bytes the outcome keeps:
//! all of them up to the limit of its stream, none beyond it.

use bytes::Bytes;
use cloche_model::{OutputChunk, StreamName};

/// The most bytes that the outcome does not keep and that wait for the end of their line. A longer
/// line is given out in pieces.
const LONGEST_WAIT: usize = 256 << 10;

/// A line, a piece of a very long one, or what was left at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) stream: StreamName,
    pub(crate) bytes: Bytes,
    /// How many of the bytes, counted from the first, the outcome keeps.
    pub(crate) kept: usize,
}

/// What a chunk completes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CompletedLines {
    pub(crate) lines: Vec<Line>,
    /// Lines that were only counted, because they are not kept and nothing reads them.
    pub(crate) counted: u64,
}

/// Holds the unfinished line of each stream.
#[derive(Default)]
pub(crate) struct LineSplitter {
    stdout: PartialLine,
    stderr: PartialLine,
}

#[derive(Default)]
struct PartialLine {
    /// Kept bytes given out as lines.
    given: usize,
    /// The line that has no newline yet.
    partial: Vec<u8>,
    /// How much of it is kept.
    kept: usize,
}

impl LineSplitter {
    /// The lines that this chunk completes. Where they are neither kept nor read, they are counted.
    pub(crate) fn push_chunk(&mut self, chunk: &OutputChunk, is_read: bool) -> CompletedLines {
        let side = self.partial_line(chunk.stream);
        let kept = chunk.kept.min(chunk.bytes.len());
        if kept == 0 && side.kept == 0 && !is_read {
            let counted = side.count_lines(&chunk.bytes);
            return CompletedLines { lines: Vec::new(), counted };
        }
        let mut lines = Vec::new();
        let end = chunk.bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        if end > 0 {
            let mut whole = std::mem::take(&mut side.partial);
            whole.extend_from_slice(&chunk.bytes[..end]);
            let kept = std::mem::take(&mut side.kept) + kept.min(end);
            side.given += kept;
            lines = split_lines(chunk.stream, Bytes::from(whole), kept);
        }
        side.partial.extend_from_slice(&chunk.bytes[end..]);
        side.kept += kept.saturating_sub(end);
        if side.partial.len() - side.kept >= LONGEST_WAIT {
            lines.extend(side.take_piece(chunk.stream));
        }
        CompletedLines { lines, counted: 0 }
    }

    /// What was captured of a stream and has not been given out: the unfinished line, and whatever
    /// did not come as chunks.
    pub(crate) fn take_rest(&mut self, stream: StreamName, captured: &Bytes) -> Vec<Line> {
        let side = self.partial_line(stream);
        let rest = captured.slice(side.given.min(captured.len())..);
        if rest.len() <= side.kept && side.partial.len() > side.kept {
            return side.take_piece(stream).into_iter().collect();
        }
        (side.partial, side.kept) = (Vec::new(), 0);
        side.given += rest.len();
        let kept = rest.len();
        split_lines(stream, rest, kept)
    }

    /// The unfinished lines, where nothing else was captured.
    pub(crate) fn take_unfinished(&mut self) -> Vec<Line> {
        let stdout = self.stdout.take_piece(StreamName::Stdout);
        stdout.into_iter().chain(self.stderr.take_piece(StreamName::Stderr)).collect()
    }

    fn partial_line(&mut self, stream: StreamName) -> &mut PartialLine {
        match stream {
            StreamName::Stdout => &mut self.stdout,
            StreamName::Stderr => &mut self.stderr,
        }
    }
}

impl PartialLine {
    /// What there is of the unfinished line, if anything.
    fn take_piece(&mut self, stream: StreamName) -> Option<Line> {
        let bytes = Bytes::from(std::mem::take(&mut self.partial));
        let kept = std::mem::take(&mut self.kept);
        self.given += kept;
        (!bytes.is_empty()).then_some(Line { stream, bytes, kept })
    }

    /// Counts the lines that these bytes complete, in the same way as they would be given out.
    fn count_lines(&mut self, bytes: &[u8]) -> u64 {
        let newlines = bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
        if newlines > 0 {
            self.partial.clear();
        }
        let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        self.partial.extend_from_slice(&bytes[end..]);
        let is_long = self.partial.len() >= LONGEST_WAIT;
        if is_long {
            self.partial.clear();
        }
        newlines + u64::from(is_long)
    }
}

/// Splits bytes at newlines. The first `kept` of them are kept.
fn split_lines(stream: StreamName, mut bytes: Bytes, mut kept: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    while !bytes.is_empty() {
        let end = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |at| at + 1);
        let line = Line { stream, bytes: bytes.split_to(end), kept: kept.min(end) };
        kept -= line.kept;
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::{
        collection::vec,
        prelude::{Strategy, any, prop_assert_eq, proptest},
    };

    use super::*;

    fn chunk(bytes: &[u8]) -> OutputChunk {
        OutputChunk { stream: StreamName::Stdout, bytes: bytes.to_vec(), kept: bytes.len() }
    }

    fn line(bytes: &'static [u8], kept: usize) -> Line {
        Line { stream: StreamName::Stdout, bytes: Bytes::from_static(bytes), kept }
    }

    #[test]
    fn a_partial_line_waits_for_its_end() {
        let mut splitter = LineSplitter::default();
        assert_eq!(splitter.push_chunk(&chunk(b"a"), true), CompletedLines::default());
        let lines = splitter.push_chunk(&chunk(b"b\nc\nd"), true).lines;
        assert_eq!(lines, [line(b"ab\n", 3), line(b"c\n", 2)]);
        let rest = splitter.take_rest(StreamName::Stdout, &Bytes::from_static(b"ab\nc\nd"));
        assert_eq!(rest, [line(b"d", 1)]);
    }

    #[test]
    fn the_line_at_the_limit_is_whole_and_knows_what_is_kept_of_it() {
        let mut splitter = LineSplitter::default();
        let over = OutputChunk { kept: 4, ..chunk(b"abcdef\ngh\ni") };
        let lines = splitter.push_chunk(&over, false).lines;
        assert_eq!(lines, [line(b"abcdef\n", 4), line(b"gh\n", 0)]);
        assert_eq!(
            splitter.take_rest(StreamName::Stdout, &Bytes::from_static(b"abcd")),
            [line(b"i", 0)]
        );
    }

    #[test]
    fn an_endless_line_beyond_the_limit_is_given_out_in_pieces() {
        for is_read in [true, false] {
            let (mut splitter, mut pieces) = (LineSplitter::default(), 0);
            for _ in 0..64 {
                let some = OutputChunk { kept: 0, ..chunk(&[b'x'; 64 << 10]) };
                let done = splitter.push_chunk(&some, is_read);
                pieces += done.lines.len() as u64 + done.counted;
            }
            assert_eq!(pieces, 16, "4 MiB in pieces of 256 KiB");
            assert!(splitter.stdout.partial.capacity() <= 1 << 20);
        }
    }

    proptest! {
        #[test]
        fn however_it_is_cut_the_bytes_and_lines_are_the_same(
            chunks in vec(vec(any::<u8>().prop_map(|b| if b < 64 { b'\n' } else { b }), 0..20), 0..20),
            cap in 0_usize..300,
        ) {
            let all: Vec<u8> = chunks.concat();
            let captured = &all[..all.len().min(cap)];
            let split = |is_read: bool| {
                let (mut splitter, mut left) = (LineSplitter::default(), cap);
                let (mut lines, mut counted) = (Vec::new(), 0);
                for piece in &chunks {
                    let kept = piece.len().min(left);
                    left -= kept;
                    let done = splitter.push_chunk(&OutputChunk { kept, ..chunk(piece) }, is_read);
                    lines.extend(done.lines);
                    counted += done.counted;
                }
                let captured = Bytes::copy_from_slice(captured);
                lines.extend(splitter.take_rest(StreamName::Stdout, &captured));
                (lines, counted)
            };
            let (lines, counted) = split(true);
            let expected: Vec<_> = all.split_inclusive(|&b| b == b'\n').collect();
            let given: Vec<_> = lines.iter().map(|line| &line.bytes[..]).collect();
            prop_assert_eq!(&given, &expected);
            prop_assert_eq!(counted, 0);
            let kept = lines.iter().flat_map(|line| &line.bytes[..line.kept]);
            prop_assert_eq!(kept.copied().collect::<Vec<_>>(), captured.to_vec());
            let (unread, counted) = split(false);
            prop_assert_eq!(unread.len() as u64 + counted, expected.len() as u64);
        }
    }
}
