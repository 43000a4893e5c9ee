//! Decodes a stream of server-sent events, in chunks of any size, to the data of each event.

/// The longest event that is accepted.
const LONGEST: usize = 64 << 20;

/// Holds the received part of an incomplete event.
#[derive(Debug, Default)]
pub(super) struct SseDecoder {
    line: Vec<u8>,
    data: Vec<u8>,
}

/// An event that is too long.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server sent an event of more than {LONGEST} bytes")]
pub(super) struct EventTooLong;

impl SseDecoder {
    /// The data of the events that these bytes complete. Events without data are keep-alives.
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
            // Line breaks within JSON are insignificant, and our client reads one message per line.
            self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_decoded_the_same_for_every_chunk_size() {
        let stream = b"id: 0\nretry: 3000\ndata:\n\n: ping\n\nid: 1\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\ndata: {}\n\n";
        for size in 1..stream.len() {
            let mut events = SseDecoder::default();
            let seen: Vec<_> =
                stream.chunks(size).flat_map(|chunk| events.push(chunk).unwrap()).collect();
            assert_eq!(seen, [&b"{\"a\":1}"[..], b"{}"], "{size}");
        }
    }
}
