//! Runs in: server (no capabilities).
//!
//! JSON of any size without a string of that size. Output is escaped (one byte can become six) in
//! small steps while it is written, from the buffer that the execution shares; everything else of a
//! value is serialised at once. The bytes are those that serde_json writes for the same text.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use serde::{Serialize, Serializer};
use serde_json::ser::Formatter;

/// Raw bytes that are escaped at once.
const STEP: usize = 8 << 10;
/// Encoded bytes that are gathered into one chunk.
const CHUNK: usize = 32 << 10;
/// Shorter texts are serialised with the rest of their value.
const SHORT: usize = 4 << 10;
/// Stands for a text that is written later. JSON has no such byte: in strings it is escaped.
const MARK: u8 = 0;

/// Bytes as the JSON string of their text, with U+FFFD where they are not UTF-8. Only serialisers of
/// this module write them so.
///
/// # Errors
/// Those of the serialiser.
pub fn serialize_text<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// The same for a text that may be missing.
///
/// # Errors
/// Those of the serialiser.
pub fn serialize_text_or_null<S: Serializer>(
    bytes: &Option<Bytes>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match bytes {
        Some(bytes) => serializer.serialize_bytes(bytes),
        None => serializer.serialize_none(),
    }
}

/// JSON that is written piece by piece.
#[derive(Clone, Debug, Default)]
pub struct JsonPieces {
    pieces: VecDeque<JsonPiece>,
}

#[derive(Clone, Debug)]
enum JsonPiece {
    /// JSON as it is.
    Json(Bytes),
    /// Text that has yet to be escaped.
    Text(Bytes),
}

impl JsonPieces {
    /// The JSON of a value. Long texts that are parts of `sources` are not copied.
    pub fn from_value<T: Serialize>(value: &T, sources: &[Bytes]) -> Self {
        let mut pieces = Self::default();
        pieces.push_value(value, sources, b"");
        pieces
    }

    /// Adds a value and a line feed.
    pub fn push_line<T: Serialize>(&mut self, value: &T, sources: &[Bytes]) {
        self.push_value(value, sources, b"\n");
    }

    fn push_value<T: Serialize>(&mut self, value: &T, sources: &[Bytes], end: &[u8]) {
        let mut texts = Vec::new();
        let mut json = Vec::new();
        let formatter = SplittingFormatter { sources, texts: &mut texts };
        let mut serializer = serde_json::Serializer::with_formatter(&mut json, formatter);
        // Writing strings and numbers to memory cannot fail.
        let _ = value.serialize(&mut serializer);
        json.extend_from_slice(end);
        let mut json = Bytes::from(json);
        for text in texts {
            let Some(at) = json.iter().position(|byte| *byte == MARK) else { break };
            self.pieces.push_back(JsonPiece::Json(json.split_to(at)));
            self.pieces.push_back(JsonPiece::Text(text));
            let _ = json.split_to(1);
        }
        self.pieces.push_back(JsonPiece::Json(json));
    }

    /// The next bytes, at most about a hundred kilobytes; none after the last.
    pub fn next_chunk(&mut self) -> Option<Bytes> {
        if let (1, Some(JsonPiece::Json(json))) = (self.pieces.len(), self.pieces.front_mut()) {
            let json = std::mem::take(json);
            self.pieces.clear();
            return Some(json).filter(|json| !json.is_empty());
        }
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK {
            match self.pieces.front_mut() {
                None => break,
                Some(JsonPiece::Json(json)) => {
                    chunk.extend_from_slice(&json.split_to(json.len().min(CHUNK)));
                }
                Some(JsonPiece::Text(text)) => {
                    // Writing to memory cannot fail.
                    let taken = escape_step(text, &mut chunk).unwrap_or(text.len());
                    let _ = text.split_to(taken);
                }
            }
            if self.pieces.front().is_some_and(JsonPiece::is_empty) {
                self.pieces.pop_front();
            }
        }
        (!chunk.is_empty()).then(|| chunk.into())
    }

    /// Whether every chunk was taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.iter().all(JsonPiece::is_empty)
    }

    /// All of it at once, where it is known to be small.
    ///
    /// # Errors
    /// Itself, where it is not small.
    pub fn into_small(mut self) -> Result<Bytes, Self> {
        match (self.pieces.len(), self.pieces.front()) {
            (1, Some(JsonPiece::Json(_))) => Ok(self.next_chunk().unwrap_or_default()),
            _ => Err(self),
        }
    }
}

impl JsonPiece {
    fn is_empty(&self) -> bool {
        let (Self::Json(bytes) | Self::Text(bytes)) = self;
        bytes.is_empty()
    }
}

/// The same as an HTTP body of known length.
pub(crate) struct MeasuredJson {
    pub(crate) pieces: JsonPieces,
    pub(crate) left: u64,
}

impl Body for MeasuredJson {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = self.pieces.next_chunk();
        self.left -= chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Writes short texts where they are and marks the place of long ones.
struct SplittingFormatter<'a> {
    sources: &'a [Bytes],
    texts: &'a mut Vec<Bytes>,
}

impl Formatter for SplittingFormatter<'_> {
    fn write_byte_array<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        value: &[u8],
    ) -> io::Result<()> {
        writer.write_all(b"\"")?;
        match self
            .sources
            .iter()
            .find(|source| value.len() > SHORT && contains_slice(source, value))
        {
            Some(source) => {
                self.texts.push(source.slice_ref(value));
                writer.write_all(&[MARK])?;
            }
            None => escape_text(value, writer)?,
        }
        writer.write_all(b"\"")
    }
}

/// Whether the second is a slice of the memory of the first.
fn contains_slice(source: &Bytes, part: &[u8]) -> bool {
    let (whole, part) = (source.as_ptr_range(), part.as_ptr_range());
    whole.start <= part.start && part.end <= whole.end
}

/// serde_json's own escapes, without the quotes.
struct BareEscapes;

impl Formatter for BareEscapes {
    fn begin_string<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        Ok(())
    }

    fn end_string<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        Ok(())
    }
}

fn escape_text<W: ?Sized + io::Write>(mut text: &[u8], writer: &mut W) -> io::Result<()> {
    while !text.is_empty() {
        let taken = escape_step(text, writer)?;
        text = &text[taken..];
    }
    Ok(())
}

/// Escapes the beginning of a text; returns how many of its bytes that were.
fn escape_step<W: ?Sized + io::Write>(text: &[u8], writer: &mut W) -> io::Result<usize> {
    let window = &text[..text.len().min(STEP)];
    let (valid, replaced) = match std::str::from_utf8(window) {
        Ok(valid) => (valid, None),
        Err(error) => {
            let valid = str::from_utf8(&window[..error.valid_up_to()]).unwrap_or_default();
            let cut = window.len() < text.len();
            // A character that the window cuts is left for the next step.
            let bad = error.error_len().or((!cut).then(|| window.len() - valid.len()));
            (valid, bad)
        }
    };
    let mut serializer = serde_json::Serializer::with_formatter(&mut *writer, BareEscapes);
    valid.serialize(&mut serializer)?;
    if replaced.is_some() {
        writer.write_all("\u{FFFD}".as_bytes())?;
    }
    Ok(valid.len() + replaced.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::{
        collection::vec,
        prelude::{Strategy, any, prop_assert_eq, prop_oneof, proptest},
    };

    use super::*;

    #[derive(Serialize)]
    struct Streamed {
        before: u8,
        #[serde(serialize_with = "serialize_text")]
        stdout: Bytes,
        #[serde(serialize_with = "serialize_text_or_null")]
        stderr: Option<Bytes>,
        after: String,
    }

    #[derive(Serialize)]
    struct Plain {
        before: u8,
        stdout: String,
        stderr: Option<String>,
        after: String,
    }

    fn all(mut pieces: JsonPieces, most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(chunk) = pieces.next_chunk() {
            assert!(chunk.len() <= most, "a chunk of {} bytes", chunk.len());
            bytes.extend_from_slice(&chunk);
        }
        bytes
    }

    fn check(stdout: &[u8], stderr: Option<&[u8]>, after: &str) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let plain = Plain {
            before: 7,
            stdout: text(stdout),
            stderr: stderr.map(text),
            after: after.to_owned(),
        };
        let streamed = Streamed {
            before: 7,
            stdout: Bytes::copy_from_slice(stdout),
            stderr: stderr.map(Bytes::copy_from_slice),
            after: after.to_owned(),
        };
        let mut sources = vec![streamed.stdout.clone()];
        sources.extend(streamed.stderr.clone());
        let expected = serde_json::to_vec(&plain).unwrap();
        let shared = all(JsonPieces::from_value(&streamed, &sources), CHUNK + 6 * STEP);
        assert!(shared == expected, "{} bytes", stdout.len());
        let copied = all(JsonPieces::from_value(&streamed, &[]), usize::MAX);
        assert!(copied == expected, "{} bytes", stdout.len());
    }

    #[test]
    fn characters_across_a_step_are_not_cut() {
        for shift in 0..8 {
            let mut text = vec![b'a'; shift];
            text.extend("\u{1F600}é\u{0}".repeat(5000).as_bytes());
            text.extend(&[0xF0, 0x9F, 0x98][..shift.min(3)]);
            check(&text, None, "end");
        }
    }

    #[test]
    fn a_mark_in_a_text_is_an_escape_like_any_other() {
        let zeros = vec![0; 20_000];
        check(&zeros, Some(&zeros), "\0 and \0");
    }

    fn piece() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            vec(any::<u8>(), 0..64),
            ".{0,40}".prop_map(String::into_bytes),
            (any::<u8>(), 0_usize..12_000).prop_map(|(byte, count)| vec![byte; count]),
            (any::<char>(), 0_usize..6_000)
                .prop_map(|(letter, count)| letter.to_string().repeat(count).into_bytes()),
        ]
    }

    proptest! {
        #[test]
        fn streamed_json_equals_what_serde_json_writes(
            stdout in vec(piece(), 0..8),
            stderr in vec(piece(), 0..8),
            after in ".{0,20}",
        ) {
            check(&stdout.concat(), Some(&stderr.concat()), &after);
        }

        #[test]
        fn short_texts_need_no_second_piece(stdout in vec(any::<u8>(), 0..200)) {
            let text = Bytes::from(stdout);
            let value = Streamed { before: 1, stdout: text.clone(), stderr: None, after: String::new() };
            let small = JsonPieces::from_value(&value, &[text]).into_small().unwrap();
            prop_assert_eq!(small.first(), Some(&b'{'));
        }
    }
}
