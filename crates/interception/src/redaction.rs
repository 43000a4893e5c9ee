//! Runs in: network broker (no capabilities).
//!
//! Finds a secret in replies, in the forms that servers echo: plain, base64, percent, hex, JSON and
//! HTML escapes. Every found byte becomes a star, so lengths stay as they were. Bytes are held back
//! only while they could be the beginning of a secret, so a stream keeps flowing.

use std::{collections::HashMap, fmt::Write as _};

use aho_corasick::{
    Anchored,
    automaton::{Automaton, StateID},
    nfa::contiguous::NFA,
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};

use crate::InterceptionError;

/// The shortest text that is looked for: a shorter one would be found by chance.
const SHORTEST: usize = 8;
const STAR: u8 = b'*';

/// The forms of the secrets of a session, in upper and lower case.
pub(crate) struct SecretForms {
    automaton: NFA,
    start: StateID,
    /// How many bytes of a form have been read in each state.
    depths: HashMap<StateID, usize>,
}

/// A form that was found.
struct FoundForm {
    end: usize,
    len: usize,
}

impl SecretForms {
    /// All forms of these secrets.
    pub(crate) fn new<'a>(
        secrets: impl Iterator<Item = &'a str>,
    ) -> Result<Self, InterceptionError> {
        // The automaton reads both cases as one, so forms that differ in it are one form.
        let mut forms: Vec<Vec<u8>> =
            secrets.flat_map(list_forms).map(|form| form.to_ascii_lowercase()).collect();
        forms.retain(|form| form.len() >= SHORTEST);
        forms.sort();
        forms.dedup();
        let automaton = NFA::builder().ascii_case_insensitive(true).build(&forms)?;
        let start = automaton.start_state(Anchored::No)?;
        let mut depths = HashMap::from([(start, 0)]);
        for form in &forms {
            let mut state = start;
            for (at, byte) in form.iter().enumerate() {
                state = automaton.next_state(Anchored::No, state, *byte);
                depths.insert(state, at + 1);
            }
        }
        Ok(Self { automaton, start, depths })
    }

    /// The bytes with every form of a secret starred out; `None` if there is none.
    pub(crate) fn redact(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (_, found) = self.read(self.start, bytes);
        (!found.is_empty()).then(|| {
            let mut redacted = bytes.to_vec();
            star_out(&mut redacted, 0, &found);
            redacted
        })
    }

    /// Reads bytes from a state on. Returns the state after them, and for each place where forms
    /// end the longest of them. The work is the same for each byte, however long the forms are.
    fn read(&self, mut state: StateID, bytes: &[u8]) -> (StateID, Vec<FoundForm>) {
        let mut found = Vec::new();
        for (at, byte) in bytes.iter().enumerate() {
            state = self.automaton.next_state(Anchored::No, state, *byte);
            if self.automaton.is_match(state) {
                found.push(FoundForm { end: at + 1, len: self.longest_form(state) });
            }
        }
        (state, found)
    }

    fn longest_form(&self, state: StateID) -> usize {
        let forms = 0..self.automaton.match_len(state);
        let len = |at| self.automaton.pattern_len(self.automaton.match_pattern(state, at));
        forms.map(len).max().unwrap_or(0)
    }
}

/// Stars out what was found in the bytes after the first `before` ones, each byte once.
fn star_out(bytes: &mut [u8], before: usize, found: &[FoundForm]) {
    let mut starred_from = bytes.len();
    for form in found.iter().rev() {
        let end = before + form.end;
        let start = end.saturating_sub(form.len);
        if start < starred_from {
            bytes[start..end.min(starred_from)].fill(STAR);
            starred_from = start;
        }
    }
}

/// Redacts a stream of bytes, chunk by chunk.
#[derive(Default)]
pub(crate) struct StreamRedactor {
    /// `None` at the beginning.
    state: Option<StateID>,
    /// The last bytes, as they will go out: as many as could be the beginning of a form.
    held: Vec<u8>,
}

impl StreamRedactor {
    /// Takes a chunk, and returns the bytes that can go out.
    pub(crate) fn push(&mut self, forms: &SecretForms, chunk: &[u8]) -> Vec<u8> {
        let (state, found) = forms.read(self.state.unwrap_or(forms.start), chunk);
        let before = self.held.len();
        self.held.extend_from_slice(chunk);
        star_out(&mut self.held, before, &found);
        self.state = Some(state);
        let open = forms.depths.get(&state).map_or(self.held.len(), |depth| *depth);
        let out = self.held.len().saturating_sub(open);
        self.held.drain(..out).collect()
    }

    /// The bytes that are still held back, at the end of the stream.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        self.state = None;
        std::mem::take(&mut self.held)
    }

    /// Whether bytes are held back.
    pub(crate) fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }
}

fn list_forms(secret: &str) -> Vec<Vec<u8>> {
    let bytes = secret.as_bytes();
    let mut forms: Vec<Vec<u8>> = vec![bytes.to_vec()];
    for escape in [percent_upper, percent_lower, percent_form, percent_all] {
        forms.push(escape(bytes).into_bytes());
    }
    for escape in [json_plain, json_slashes, json_html, json_html_upper, json_all, html] {
        forms.push(escape(secret).into_bytes());
    }
    let lower: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    forms.push(lower.to_ascii_uppercase().into_bytes());
    forms.push(lower.into_bytes());
    for phase in 0..3 {
        let (standard, url) = base64_phase(bytes, phase);
        // Servers escape the characters of base64 in turn.
        forms.push(percent_upper(&standard).into_bytes());
        forms.push(json_slashes(&String::from_utf8_lossy(&standard)).into_bytes());
        forms.extend([standard, url]);
    }
    forms
}

/// The characters of base64 that depend on the secret only, if it begins at this position of a
/// group of three bytes.
fn base64_phase(bytes: &[u8], phase: usize) -> (Vec<u8>, Vec<u8>) {
    let padded: Vec<u8> = std::iter::repeat_n(0, phase).chain(bytes.iter().copied()).collect();
    let first = (phase * 8).div_ceil(6);
    let last = padded.len() * 8 / 6;
    let cut = |text: String| text.as_bytes().get(first..last).unwrap_or_default().to_vec();
    (cut(STANDARD_NO_PAD.encode(&padded)), cut(URL_SAFE_NO_PAD.encode(&padded)))
}

fn escape_bytes(bytes: &[u8], escape: impl Fn(u8) -> Option<String>) -> String {
    let mut out = String::new();
    for byte in bytes {
        match escape(*byte) {
            Some(escaped) => out.push_str(&escaped),
            None => out.push(char::from(*byte)),
        }
    }
    out
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn percent_upper(bytes: &[u8]) -> String {
    escape_bytes(bytes, |byte| (!is_unreserved(byte)).then(|| format!("%{byte:02X}")))
}

fn percent_lower(bytes: &[u8]) -> String {
    escape_bytes(bytes, |byte| (!is_unreserved(byte)).then(|| format!("%{byte:02x}")))
}

fn percent_form(bytes: &[u8]) -> String {
    percent_upper(bytes).replace("%20", "+")
}

fn percent_all(bytes: &[u8]) -> String {
    escape_bytes(bytes, |byte| Some(format!("%{byte:02X}")))
}

fn json_escape(secret: &str, escape: impl Fn(char) -> bool, upper: bool) -> String {
    let mut out = String::new();
    for c in secret.chars() {
        let code = u32::from(c);
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            c if escape(c) && upper => write!(out, "\\u{code:04X}"),
            c if escape(c) => write!(out, "\\u{code:04x}"),
            c => write!(out, "{c}"),
        };
    }
    out
}

fn json_plain(secret: &str) -> String {
    json_escape(secret, |_| false, false)
}

fn json_slashes(secret: &str) -> String {
    json_plain(secret).replace('/', "\\/")
}

fn json_html(secret: &str) -> String {
    json_escape(secret, |c| matches!(c, '<' | '>' | '&' | '\'' | '+'), false)
}

fn json_html_upper(secret: &str) -> String {
    json_escape(secret, |c| matches!(c, '<' | '>' | '&' | '\'' | '+'), true)
}

fn json_all(secret: &str) -> String {
    secret.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect()
}

fn html(secret: &str) -> String {
    let escape = |c: char| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        '\'' => "&#39;".to_owned(),
        c => c.to_string(),
    };
    secret.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const SECRET: &str = "sk-a/b+c=\"d\\e'f<g>&h i";

    fn forms(secret: &str) -> SecretForms {
        SecretForms::new([secret].into_iter()).unwrap()
    }

    fn stream(forms: &SecretForms, chunks: &[&[u8]]) -> Vec<u8> {
        let mut redactor = StreamRedactor::default();
        let mut out: Vec<u8> =
            chunks.iter().flat_map(|chunk| redactor.push(forms, chunk)).collect();
        out.extend(redactor.finish());
        out
    }

    #[test]
    fn every_form_of_a_secret_is_starred_out_wherever_it_begins() {
        let forms = forms(SECRET);
        let json = serde_json::to_string(SECRET).unwrap();
        let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
        let urlencoded = percent_upper(SECRET.as_bytes());
        for text in [SECRET, json.trim_matches('"'), &hex, &hex.to_uppercase(), &urlencoded] {
            let text = format!("before {text} after");
            let redacted = String::from_utf8(forms.redact(text.as_bytes()).unwrap()).unwrap();
            assert_eq!(redacted.len(), text.len());
            assert!(
                redacted.starts_with("before *") && redacted.ends_with("* after"),
                "{redacted}"
            );
            assert!(!redacted.contains("sk-a"), "{redacted}");
        }
        for before in ["", "x", "xy", "xyz", "user:", "Basic user:"] {
            let encoded = STANDARD_NO_PAD.encode(format!("{before}{SECRET}:after"));
            let redacted = forms.redact(encoded.as_bytes()).unwrap();
            let clear = redacted.iter().filter(|byte| **byte != STAR).count();
            let secret_only = (SECRET.len() * 8).div_ceil(6) - 2;
            assert!(encoded.len() - clear >= secret_only - 1, "{before}: {clear}");
        }
    }

    #[test]
    fn a_text_without_a_secret_is_left_alone_and_never_held_back() {
        let forms = forms("super-secret-token");
        assert_eq!(forms.redact(b"a superb secret"), None);
        let mut redactor = StreamRedactor::default();
        assert_eq!(redactor.push(&forms, b"data: one\n\n"), b"data: one\n\n");
        assert_eq!(redactor.push(&forms, b"data: super-sec"), b"data: ");
        assert!(redactor.holds_any());
        assert_eq!(redactor.push(&forms, b"ure\n\n"), b"super-secure\n\n");
        assert!(!redactor.holds_any());
    }

    #[test]
    fn a_secret_inside_the_beginning_of_a_longer_one_is_starred_out() {
        let forms = SecretForms::new(["aaaabbbb", "xaaaabbbbyyyy"].into_iter()).unwrap();
        assert_eq!(stream(&forms, &[b"-xaaaabbbb", b"-"]), b"-x********-");
        assert_eq!(stream(&forms, &[b"-xaaaabb", b"bbyyyy-"]), b"-*************-");
    }

    #[test]
    fn a_secret_in_another_case_is_starred_out() {
        let forms = forms("Sk-Live-abcDEF");
        assert_eq!(forms.redact(b"x-sk-live-ABCdef-y").unwrap(), b"x-**************-y");
    }

    /// A server that knows the credential can send its beginning again and again, byte by byte. If
    /// each byte cost as much as what is held back, this would take an hour.
    #[test]
    fn the_work_for_a_byte_does_not_grow_with_what_is_held_back() {
        let secret = "a".repeat(8000) + "b";
        let forms = forms(&secret);
        let (mut redactor, mut out) = (StreamRedactor::default(), Vec::new());
        for _ in 0..200_000 {
            out.extend(redactor.push(&forms, b"a"));
        }
        out.extend(redactor.push(&forms, b"b"));
        out.extend(redactor.finish());
        assert_eq!(out, ["a".repeat(192_000), "*".repeat(8001)].concat().into_bytes());
        assert_eq!(forms.redact("a".repeat(200_000).as_bytes()), None);
    }

    proptest! {
        #[test]
        fn how_a_reply_is_cut_into_chunks_changes_nothing(
            parts in vec(prop_oneof![
                Just("super-secret-token".to_owned()), Just("super-secret".to_owned()),
                Just("s".to_owned()), Just("c3VwZXItc2VjcmV0LXRva2Vu".to_owned()), "[a-z]{0,6}",
            ], 0..6),
            cuts in vec(0usize..64, 0..8),
        ) {
            let forms = forms("super-secret-token");
            let text = parts.concat().into_bytes();
            let whole = forms.redact(&text).unwrap_or_else(|| text.clone());
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            let streamed = stream(&forms, &chunks);
            prop_assert_eq!(&streamed, &whole);
            prop_assert!(!String::from_utf8_lossy(&streamed).contains("super-secret-token"));
        }
    }
}
