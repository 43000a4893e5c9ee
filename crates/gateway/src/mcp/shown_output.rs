//! Output made safe for terminals and short enough for a model.

use cloche_model::display::reveal_hidden;

/// Output as shown: its first bytes, how many bytes follow them, and the last of those.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ShownOutput {
    pub(super) text: String,
    pub(super) left_out: u64,
    /// The end of the output; `None` if all of it is in `text` or its end was not captured.
    pub(super) tail: Option<String>,
}

/// A captured stream: its first bytes and, if it was truncated, its last bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamExcerpt<'a> {
    pub(super) head: &'a [u8],
    /// How many bytes followed.
    pub(super) dropped: u64,
    /// The last of those.
    pub(super) tail: &'a [u8],
}

impl<'a> StreamExcerpt<'a> {
    /// A complete stream.
    pub(super) fn from_all_bytes(head: &'a [u8]) -> Self {
        Self { head, dropped: 0, tail: &[] }
    }
}

/// The share of the limit that the end of long output gets.
const TAIL_SHARE: usize = 4;

/// Shows at most `limit` bytes of output: all of it, or its first bytes with the last ones beside
/// them.
pub(super) fn show_output(stream: StreamExcerpt<'_>, limit: usize, inert: bool) -> ShownOutput {
    let text = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        if inert { reveal_hidden(&text) } else { text.into_owned() }
    };
    let StreamExcerpt { head, dropped, tail } = stream;
    if head.len() <= limit && dropped == 0 {
        return ShownOutput { text: text(head), left_out: 0, tail: None };
    }
    let room = limit / TAIL_SHARE;
    let (begin, rest) = head.split_at(char_start_before(head, head.len().min(limit - room)));
    // If bytes were dropped, the end of the stream is among them.
    let end = if dropped == 0 { rest } else { tail };
    let end = &end[char_start_after(end, end.len().saturating_sub(room))..];
    let left_out = rest.len() as u64 + dropped;
    let tail = (!end.is_empty()).then(|| text(end));
    ShownOutput { text: text(begin), left_out, tail }
}

fn is_continuation_byte(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// The start of the character at this position, at most three bytes back.
fn char_start_before(bytes: &[u8], at: usize) -> usize {
    let start = (at.saturating_sub(3)..=at).rev();
    start
        .into_iter()
        .find(|&at| bytes.get(at).is_none_or(|byte| !is_continuation_byte(*byte)))
        .unwrap_or(at)
}

/// The start of the next character, at most three bytes ahead.
fn char_start_after(bytes: &[u8], at: usize) -> usize {
    (at..at + 4)
        .find(|&at| bytes.get(at).is_none_or(|byte| !is_continuation_byte(*byte)))
        .unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::*;

    #[test]
    fn long_output_keeps_its_head_and_has_its_tail_beside_it() {
        let output = [b"begin".repeat(20), b"end".repeat(20)].concat();
        let shown = show_output(StreamExcerpt::from_all_bytes(&output), 20, false);
        assert_eq!((&shown.text[..], shown.left_out), ("beginbeginbegin", 145));
        assert_eq!(shown.tail.as_deref(), Some("ndend"));
    }

    #[test]
    fn dropped_bytes_are_counted_and_their_end_is_the_tail() {
        let stream = StreamExcerpt { head: b"abcdef", dropped: 10, tail: b"wxyz" };
        let shown = show_output(stream, 4, false);
        assert_eq!((&shown.text[..], shown.left_out), ("abc", 13));
        assert_eq!(shown.tail.as_deref(), Some("z"));
        let lost = StreamExcerpt { tail: b"", ..stream };
        assert_eq!(show_output(lost, 4, false).tail, None);
    }

    proptest! {
        #[test]
        fn no_character_is_split_and_every_byte_is_counted(
            text in any::<String>(), limit in 8_usize..64, inert in any::<bool>(),
        ) {
            let shown = show_output(StreamExcerpt::from_all_bytes(text.as_bytes()), limit, inert);
            let tail = shown.tail.clone().unwrap_or_default();
            let replaced = |text: &str| text.contains(char::REPLACEMENT_CHARACTER);
            prop_assert!(!replaced(&shown.text) && !replaced(&tail) || replaced(&text));
            prop_assert!(shown.left_out > 0 || text.len() <= limit);
            if inert {
                let control = |c: char| c.is_control() && c != '\n' && c != '\t';
                prop_assert!(!shown.text.contains(control) && !tail.contains(control));
            } else {
                prop_assert!(text.starts_with(&shown.text) && text.ends_with(&tail));
                prop_assert!(shown.text.len() as u64 + shown.left_out == text.len() as u64);
                prop_assert!(shown.text.len() + tail.len() <= limit);
            }
        }
    }
}
