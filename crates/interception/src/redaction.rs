//! Runs in: network broker (no capabilities).
//!
//! Finds a secret in replies, in the forms that servers echo: plain, base64, percent, hex, JSON and
//! HTML escapes, UTF-16. Every found byte becomes a star, so lengths stay as they were. Bytes are held back
//! only while they could be the beginning of a secret, so a stream keeps flowing.

use std::collections::HashMap;

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

/// What the escapes of URLs leave as it is, besides letters, digits and `-._`: RFC 3986, Python,
/// `encodeURIComponent`, `encodeURI` of JavaScript, and forms.
const LEFT_IN_URLS: [&[u8]; 5] = [b"~", b"~/", b"~!*'()", b"~!*'();,/?:@&=+$#", b"*"];
/// What the writers of JSON escape by number, besides what has to be: none, Go, and frameworks that
/// take care of HTML.
const NUMBERED_IN_JSON: [&[u8]; 4] = [b"", b"<>&", b"<>&'+", b"<>&'+\"`"];
/// What stands for a double and for a single quote in HTML: none, PHP, Python, Go, XML.
const QUOTES_IN_HTML: [[&str; 2]; 6] = [
    ["\"", "'"],
    ["&quot;", "&#39;"],
    ["&quot;", "&#039;"],
    ["&quot;", "&#x27;"],
    ["&#34;", "&#39;"],
    ["&quot;", "&apos;"],
];

fn list_forms(secret: &str) -> Vec<Vec<u8>> {
    let bytes = secret.as_bytes();
    let mut forms: Vec<Vec<u8>> = vec![bytes.to_vec()];
    for left in LEFT_IN_URLS {
        let escaped = percent(bytes, left);
        forms.push(escaped.replace("%20", "+").into_bytes());
        forms.push(escaped.into_bytes());
    }
    for numbered in NUMBERED_IN_JSON {
        let escaped = json(secret, numbered);
        forms.push(escaped.replace('/', "\\/").into_bytes());
        forms.push(escaped.into_bytes());
    }
    forms.extend(QUOTES_IN_HTML.map(|quotes| html(secret, quotes).into_bytes()));
    for escape in [percent_all, json_all, entities, hex_entities, hex] {
        forms.push(escape(bytes).into_bytes());
    }
    forms.extend(utf16(bytes));
    for phase in 0..3 {
        let (standard, url) = base64_phase(bytes, phase);
        // Servers escape the characters of base64 in turn.
        forms.push(percent(&standard, b"").into_bytes());
        forms.push(percent(&standard, b"/").into_bytes());
        forms.push(json(&String::from_utf8_lossy(&standard), b"").replace('/', "\\/").into_bytes());
        forms.extend([standard, url]);
    }
    forms
}

/// UTF-16 without a mark, the low byte first and the high byte first.
fn utf16(bytes: &[u8]) -> [Vec<u8>; 2] {
    let low = bytes.iter().flat_map(|byte| [*byte, 0]).collect();
    let high = bytes.iter().flat_map(|byte| [0, *byte]).collect();
    [low, high]
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

fn escape_each(bytes: &[u8], escape: impl Fn(u8) -> String) -> String {
    bytes.iter().map(|byte| escape(*byte)).collect()
}

/// Percent escapes, except of letters, digits, `-._` and what is left as it is. The automaton reads
/// both cases of their digits.
fn percent(bytes: &[u8], left: &[u8]) -> String {
    escape_each(bytes, |byte| {
        match byte.is_ascii_alphanumeric() || b"-._".contains(&byte) || left.contains(&byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02x}"),
        }
    })
}

fn percent_all(bytes: &[u8]) -> String {
    escape_each(bytes, |byte| format!("%{byte:02x}"))
}

fn hex(bytes: &[u8]) -> String {
    escape_each(bytes, |byte| format!("{byte:02x}"))
}

/// JSON with some characters by their number, and `"` and `\` with a backslash if they are not.
fn json(secret: &str, numbered: &[u8]) -> String {
    escape_each(secret.as_bytes(), |byte| match byte {
        byte if numbered.contains(&byte) => format!("\\u{byte:04x}"),
        b'"' | b'\\' => format!("\\{}", char::from(byte)),
        byte => char::from(byte).to_string(),
    })
}

fn json_all(bytes: &[u8]) -> String {
    escape_each(bytes, |byte| format!("\\u{byte:04x}"))
}

fn html(secret: &str, [double, single]: [&str; 2]) -> String {
    escape_each(secret.as_bytes(), |byte| match byte {
        b'&' => "&amp;".to_owned(),
        b'<' => "&lt;".to_owned(),
        b'>' => "&gt;".to_owned(),
        b'"' => double.to_owned(),
        b'\'' => single.to_owned(),
        byte => char::from(byte).to_string(),
    })
}

fn entities(bytes: &[u8]) -> String {
    escape_each(bytes, |byte| format!("&#{byte};"))
}

fn hex_entities(bytes: &[u8]) -> String {
    escape_each(bytes, |byte| format!("&#x{byte:x};"))
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
        let urlencoded = percent(SECRET.as_bytes(), b"~");
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

    /// As the usual functions of languages and frameworks write [`SECRET`].
    #[test]
    fn the_escapes_of_common_servers_are_starred_out() {
        let forms = forms(SECRET);
        for escaped in [
            // urllib.parse.quote, quote_plus, encodeURIComponent, encodeURI
            "sk-a/b%2Bc%3D%22d%5Ce%27f%3Cg%3E%26h%20i",
            "sk-a%2Fb%2Bc%3D%22d%5Ce%27f%3Cg%3E%26h+i",
            "sk-a%2Fb%2Bc%3D%22d%5Ce'f%3Cg%3E%26h%20i",
            "sk-a/b+c=%22d%5Ce'f%3Cg%3E&h%20i",
            // json of Python, PHP, Go, System.Text.Json
            "sk-a/b+c=\\\"d\\\\e'f<g>&h i",
            "sk-a\\/b+c=\\\"d\\\\e'f<g>&h i",
            "sk-a/b+c=\\\"d\\\\e'f\\u003cg\\u003e\\u0026h i",
            "sk-a/b\\u002Bc=\\u0022d\\\\e\\u0027f\\u003Cg\\u003E\\u0026h i",
            // html.escape, htmlspecialchars, html.EscapeString, text of XML
            "sk-a/b+c=&quot;d\\e&#x27;f&lt;g&gt;&amp;h i",
            "sk-a/b+c=&quot;d\\e&#039;f&lt;g&gt;&amp;h i",
            "sk-a/b+c=&#34;d\\e&#39;f&lt;g&gt;&amp;h i",
            "sk-a/b+c=\"d\\e'f&lt;g&gt;&amp;h i",
        ] {
            let redacted = forms.redact(format!("[{escaped}]").as_bytes()).unwrap();
            let stars = format!("[{}]", "*".repeat(escaped.len()));
            assert_eq!(String::from_utf8(redacted).unwrap(), stars, "{escaped}");
        }
        for escaped in [
            "\u{0}s\u{0}k\u{0}-\u{0}a\u{0}/\u{0}b\u{0}+\u{0}c\u{0}=",
            "&#115;&#107;&#45;&#97;&#47;&#98;&#43;&#99;&#61;",
            "&#x73;&#x6B;&#x2D;&#x61;&#x2F;&#x62;&#x2B;&#x63;&#x3D;",
        ] {
            let forms = self::forms("sk-a/b+c=");
            assert!(forms.redact(escaped.as_bytes()).unwrap().iter().all(|byte| *byte == STAR));
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
