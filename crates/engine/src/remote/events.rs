//! Runs in: server (no capabilities).
//!
//! The lines of a sidecar's stream, one event each, with a bound on their length.

use bytes::{Buf, BytesMut};
use reqwest::Response;

use crate::sidecar::JobEvent;

/// The longest line that is read: a chunk of output is a pipe's worth, a result lists files.
const MAX_LINE: usize = 4 << 20;

/// A stream of events.
pub(super) struct JobEventStream {
    response: Response,
    buffer: BytesMut,
    /// How much of the buffer has no end of a line.
    searched: usize,
}

impl JobEventStream {
    pub(super) fn new(response: Response) -> Self {
        Self { response, buffer: BytesMut::new(), searched: 0 }
    }

    /// The next event; safe to cancel. An error says what is wrong with the stream.
    pub(super) async fn next(&mut self) -> Result<JobEvent, String> {
        loop {
            if let Some(line) = take_line(&mut self.buffer, &mut self.searched) {
                return serde_json::from_slice(&line)
                    .map_err(|error| format!("it said what cannot be understood: {error}"));
            }
            if self.buffer.len() > MAX_LINE {
                return Err("it said a line without an end".to_owned());
            }
            match self.response.chunk().await {
                Ok(Some(bytes)) => self.buffer.extend_from_slice(&bytes),
                Ok(None) => return Err("it ended without a result".to_owned()),
                Err(error) => return Err(format!("it went away: {}", error.without_url())),
            }
        }
    }
}

fn take_line(buffer: &mut BytesMut, searched: &mut usize) -> Option<BytesMut> {
    let Some(length) = buffer[*searched..].iter().position(|&byte| byte == b'\n') else {
        *searched = buffer.len();
        return None;
    };
    let line = buffer.split_to(*searched + length);
    buffer.advance(1);
    *searched = 0;
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_however_they_are_cut() {
        let text = b"{\"a\":1}\n\n{\"b\":2}\nrest";
        for size in 1..text.len() {
            let (mut buffer, mut searched, mut lines) = (BytesMut::new(), 0, Vec::new());
            for piece in text.chunks(size) {
                buffer.extend_from_slice(piece);
                while let Some(line) = take_line(&mut buffer, &mut searched) {
                    lines.push(line.to_vec());
                }
            }
            assert_eq!(lines, [&b"{\"a\":1}"[..], b"", b"{\"b\":2}"], "{size}");
            assert_eq!(&buffer[..], b"rest");
        }
    }
}
