//! Output made safe for terminals and short enough for a model.

use cloche_model::display::reveal_hidden;

/// Output as shown: at most `limit` bytes of it, and how many bytes are left out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ShownOutput {
    pub(super) text: String,
    pub(super) left_out: u64,
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

/// Shows at most `limit` bytes of output: the first and the last bytes, with a line in between that
/// says how many bytes are left out.
pub(super) fn show_output(stream: StreamExcerpt<'_>, limit: usize, inert: bool) -> ShownOutput {
    let text = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        if inert { reveal_hidden(&text) } else { text.into_owned() }
    };
    let StreamExcerpt { head, dropped, tail } = stream;
    if head.len() <= limit && dropped == 0 {
        return ShownOutput { text: text(head), left_out: 0 };
    }
    // If bytes were dropped, the end of the stream is among them.
    let end = if dropped == 0 { head } else { tail };
    let room = (limit / 2).min(end.len());
    let end = &end[char_start_after(end, end.len() - room)..];
    let begin = &head[..char_start_before(head, head.len().min(limit - room))];
    let left_out = head.len() as u64 + dropped - (begin.len() + end.len()) as u64;
    let (begin, end) = (text(begin), text(end));
    ShownOutput { text: format!("{begin}\n[... {left_out} bytes left out ...]\n{end}"), left_out }
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
    fn long_output_shows_its_first_and_last_bytes() {
        let output = [b"begin".repeat(20), b"end".repeat(20)].concat();
        let shown = show_output(StreamExcerpt::from_all_bytes(&output), 20, false);
        assert_eq!(shown.text, "beginbegin\n[... 140 bytes left out ...]\ndendendend");
        assert_eq!(shown.left_out, 140);
    }

    #[test]
    fn dropped_bytes_are_counted_and_their_end_is_shown() {
        let stream = StreamExcerpt { head: b"abcdef", dropped: 10, tail: b"wxyz" };
        let shown = show_output(stream, 4, false);
        assert_eq!((&shown.text[..], shown.left_out), ("ab\n[... 12 bytes left out ...]\nyz", 12));
    }

    proptest! {
        #[test]
        fn no_character_is_split_and_every_byte_is_counted(
            text in any::<String>(), limit in 8_usize..64, inert in any::<bool>(),
        ) {
            let shown = show_output(StreamExcerpt::from_all_bytes(text.as_bytes()), limit, inert);
            let replaced = |text: &str| text.contains(char::REPLACEMENT_CHARACTER);
            prop_assert!(!replaced(&shown.text) || replaced(&text));
            prop_assert!(shown.left_out > 0 || text.len() <= limit);
            if inert {
                prop_assert!(!shown.text.contains(|c: char| c.is_control() && c != '\n' && c != '\t'));
            } else if shown.left_out > 0 {
                let kept = shown.text.len() - "\n[...  bytes left out ...]\n".len()
                    - shown.left_out.to_string().len();
                prop_assert!(kept as u64 + shown.left_out == text.len() as u64 && kept <= limit);
            }
        }
    }
}
