//! A stream of server-sent events, cut anywhere, to the data of each event.

/// The longest event that is taken.
const LONGEST: usize = 64 << 20;

/// Holds what has arrived of the event that is not complete.
#[derive(Debug, Default)]
pub(super) struct SseDecoder {
    line: Vec<u8>,
    data: Vec<u8>,
}

/// An event without an end.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server sent an event of more than {LONGEST} bytes")]
pub(super) struct EventTooLong;

impl SseDecoder {
    /// The data of the events that these bytes complete. Events without data are signs of life.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, EventTooLong> {
        let mut complete = Vec::new();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.len() + self.data.len() > LONGEST {
                return Err(EventTooLong);
            }
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.take_line(line.trim_ascii_end(), &mut complete);
            }
        }
        Ok(complete)
    }

    fn take_line(&mut self, line: &[u8], complete: &mut Vec<Vec<u8>>) {
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            if !data.is_empty() {
                complete.push(data);
            }
        } else if let Some(data) = line.strip_prefix(b"data:") {
            // JSON on several lines is the same JSON on one; a line is what our client reads.
            self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let stream = b"id: 0\nretry: 3000\ndata:\n\n: ping\n\nid: 1\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\ndata: {}\n\n";
        for size in 1..stream.len() {
            let mut events = SseDecoder::default();
            let seen: Vec<_> =
                stream.chunks(size).flat_map(|chunk| events.push(chunk).unwrap()).collect();
            assert_eq!(seen, [&b"{\"a\":1}"[..], b"{}"], "{size}");
        }
    }
}
