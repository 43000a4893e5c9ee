//! Runs in: server (no capabilities).
//!
//! Measures one text of a JSON object while the object passes by, in constant memory. It does not
//! check the JSON: it only has to know which string it is in.

/// Measures the text with some name in the outermost object.
pub(super) struct TextMeter {
    name: &'static str,
    limit: usize,
    depth: usize,
    place: JsonPlace,
    /// The string that was read last or is being read, as far as it can be the name.
    text: Vec<u8>,
    /// Whether that string is a name of the outermost object, and whether a value follows.
    awaits_value: bool,
    is_wanted: bool,
    /// Bytes of the wanted text so far, without its escapes.
    length: usize,
}

/// Where in the JSON the next byte is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JsonPlace {
    Outside,
    InString,
    /// After a backslash.
    Escape,
    /// In the digits of `\uXXXX`; how many are missing.
    Unicode(u8),
}

impl TextMeter {
    pub(super) fn new(name: &'static str, limit: usize) -> Self {
        Self {
            name,
            limit,
            depth: 0,
            place: JsonPlace::Outside,
            text: Vec::new(),
            awaits_value: false,
            is_wanted: false,
            length: 0,
        }
    }

    /// Whether the text is certainly longer than its limit.
    pub(super) fn exceeds_limit(&self) -> bool {
        self.length > self.limit
    }

    /// Takes the next bytes of the JSON.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.exceeds_limit() {
                return;
            }
            self.push_byte(byte);
        }
    }

    fn push_byte(&mut self, byte: u8) {
        self.place = match (self.place, byte) {
            (JsonPlace::Outside, b'"') => self.begin_string(),
            (JsonPlace::Outside, _) => self.push_outside(byte),
            (JsonPlace::InString, b'"') => JsonPlace::Outside,
            (JsonPlace::InString, b'\\') => JsonPlace::Escape,
            (JsonPlace::InString, _) => self.count_byte(byte),
            (JsonPlace::Escape, b'u') => JsonPlace::Unicode(4),
            (JsonPlace::Escape, _) => self.count_byte(byte),
            // At least one byte. A pair of surrogates is at least two, and is in fact four.
            (JsonPlace::Unicode(1), _) => self.count_byte(0),
            (JsonPlace::Unicode(missing), _) => JsonPlace::Unicode(missing - 1),
        };
    }

    fn begin_string(&mut self) -> JsonPlace {
        self.is_wanted =
            self.awaits_value && self.depth == 1 && self.text.as_slice() == self.name.as_bytes();
        self.text.clear();
        self.length = 0;
        JsonPlace::InString
    }

    fn push_outside(&mut self, byte: u8) -> JsonPlace {
        match byte {
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b':' => self.awaits_value = true,
            b',' => {}
            // White space, numbers and words: a value that is no string has no further colon.
            _ => return JsonPlace::Outside,
        }
        if byte != b':' {
            self.awaits_value = false;
        }
        JsonPlace::Outside
    }

    fn count_byte(&mut self, byte: u8) -> JsonPlace {
        if self.is_wanted {
            self.length += 1;
        } else if self.text.len() <= self.name.len() {
            self.text.push(byte);
        }
        JsonPlace::InString
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exceeds(json: &str, limit: usize) -> bool {
        let mut by_byte = TextMeter::new("code", limit);
        json.bytes().for_each(|byte| by_byte.push(&[byte]));
        let mut at_once = TextMeter::new("code", limit);
        at_once.push(json.as_bytes());
        assert_eq!(by_byte.exceeds_limit(), at_once.exceeds_limit());
        at_once.exceeds_limit()
    }

    #[test]
    fn only_the_text_with_its_name_in_the_outermost_object_is_measured() {
        for json in [
            r#"{"code":"abcdef"}"#,
            r#" { "x" : [1, {"code": 2}], "code" : "abcdef"#,
            r#"{"a":"b","code":"\n\n\"\\\u0041bc"#,
            r#"{"metadata":{"code":"x"},"code":"123456"#,
        ] {
            assert!(exceeds(json, 5), "{json}");
            assert!(!exceeds(json, 10), "{json}");
        }
        for json in [
            r#"{"codes":"abcdef"}"#,
            r#"{"cod":"abcdef"}"#,
            r#"{"a":"code","b":"abcdef"}"#,
            r#"{"a":{"code":"abcdef"}}"#,
            r#"["code","abcdef"]"#,
            r#"{"code":["abcdef"]}"#,
            r#"{"code":1,"stdin":"abcdef"}"#,
            r#"{"stdin":"\"code\":\"abcdef"}"#,
        ] {
            assert!(!exceeds(json, 5), "{json}");
        }
    }
}
