//! Prefixes of object keys and of paths in volumes, which can only be narrowed.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// A prefix of keys: empty, or plain segments that each end in `/`.
///
/// `users/1/` is not a prefix of `users/10/a`, because a prefix ends with its separator. Prefixes
/// are compared as bytes: there is no case folding and no Unicode normalisation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyPrefix(String);

impl KeyPrefix {
    /// The limit on bytes of a prefix. Keys have at most 1024.
    pub const MAX_BYTES: usize = 1000;
    /// The limit on bytes of one segment, which is a file name in a cell.
    pub const MAX_SEGMENT_BYTES: usize = 255;

    /// The prefix as text: empty, or with a `/` at its end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether every key has it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The segments, without separators.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.split_terminator('/')
    }

    /// This prefix, narrowed to a directory below it. The result always begins with `self`.
    ///
    /// # Errors
    /// When both together are too long.
    pub fn narrowed_by(&self, below: &Self) -> Result<Self, Invalid> {
        let joined = format!("{}{}", self.0, below.0);
        if joined.len() > Self::MAX_BYTES {
            return Err(Invalid::new(format!(
                "the prefixes of a mount exceed {} bytes together",
                Self::MAX_BYTES
            )));
        }
        Ok(Self(joined))
    }

    /// Whether `other` is this prefix or lies below it.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }

    /// The narrower of two prefixes of one bucket or volume; `None` if they have nothing in common.
    #[must_use]
    pub fn narrower_of(&self, other: &Self) -> Option<Self> {
        match (self.contains(other), other.contains(self)) {
            (true, _) => Some(other.clone()),
            (false, true) => Some(self.clone()),
            (false, false) => None,
        }
    }

    /// The rest of a key below this prefix; `None` if the key is elsewhere.
    #[must_use]
    pub fn strip<'k>(&self, key: &'k str) -> Option<&'k str> {
        key.strip_prefix(self.0.as_str())
    }

    /// Whether a segment has one meaning only: not empty, no dot segment, no separator or escape in
    /// another spelling, no character that looks like a dot or a slash.
    fn is_plain_segment(segment: &str) -> bool {
        let odd = |c: char| {
            c.is_control() || matches!(c, '\\' | '%') || LOOKALIKES.contains(&c) || is_invisible(c)
        };
        !segment.is_empty()
            && segment.len() <= Self::MAX_SEGMENT_BYTES
            && !segment.ends_with('.')
            && segment.trim().len() == segment.len()
            && !segment.contains("..")
            && !segment.contains(odd)
    }
}

/// Characters that some software reads as a dot, a separator or an escape, after a change of
/// encoding or normal form.
const LOOKALIKES: [char; 20] = [
    '\u{2024}', '\u{2025}', '\u{2026}', '\u{fe52}', '\u{ff0e}', '\u{3002}', '\u{ff61}', '\u{fe30}',
    '\u{ff0f}', '\u{2215}', '\u{2044}', '\u{29f8}', '\u{2571}', '\u{29f5}', '\u{2216}', '\u{fe68}',
    '\u{ff3c}', '\u{ff05}', '\u{fe6a}', '\u{fffd}',
];

/// Characters that are not seen: zero width, direction marks, fillers, tags.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

impl FromStr for KeyPrefix {
    type Err = Invalid;

    /// Parses a prefix as people write it: one `/` at its end may be left out. Nothing is cleaned
    /// up; what is not plain is refused.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let body = text.strip_suffix('/').unwrap_or(text);
        if body.len() + 1 > Self::MAX_BYTES {
            return Err(Invalid::new(format!(
                "a prefix must be at most {} bytes",
                Self::MAX_BYTES
            )));
        }
        if !body.split('/').all(Self::is_plain_segment) {
            return Err(Invalid::new(
                "a prefix must be names separated by /: none empty, with .. or a dot at its end, \
                 and no backslash, percent sign or control character",
            ));
        }
        Ok(Self(format!("{body}/")))
    }
}

impl TryFrom<String> for KeyPrefix {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<KeyPrefix> for String {
    fn from(prefix: KeyPrefix) -> Self {
        prefix.0
    }
}

impl fmt::Display for KeyPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn prefix(text: &str) -> KeyPrefix {
        text.parse().unwrap()
    }

    #[test]
    fn a_prefix_ends_with_its_separator() {
        assert_eq!(prefix("users/1").as_str(), "users/1/");
        assert_eq!(prefix("users/1/"), prefix("users/1"));
        assert_eq!(prefix("users/1").strip("users/1/a"), Some("a"));
        assert_eq!(prefix("users/1").strip("users/10/a"), None);
        assert_eq!(prefix("users/1").strip("Users/1/a"), None);
        assert!(prefix("").is_empty());
        assert_eq!(prefix("").strip("a"), Some("a"));
    }

    #[test]
    fn levels_are_compared_by_segments() {
        assert!(prefix("users/1").contains(&prefix("users/1")));
        assert!(prefix("users/1").contains(&prefix("users/1/a/b/")));
        for other in ["users/10", "users", "Users/1", "users/1x/1", "other", ""] {
            assert!(!prefix("users/1").contains(&prefix(other)), "{other}");
        }
        let narrower = |a: &str, b: &str| prefix(a).narrower_of(&prefix(b));
        assert_eq!(narrower("", "a/b"), Some(prefix("a/b")));
        assert_eq!(narrower("a/b", "a"), Some(prefix("a/b")));
        assert_eq!(narrower("a", "ab"), None);
        assert_eq!(narrower("a/x", "a/y"), None);
    }

    #[test]
    fn an_ambiguous_prefix_is_refused() {
        for text in [
            "/",
            "/a",
            "a//b",
            "a//",
            ".",
            "..",
            "a/..",
            "a/../b",
            "./a",
            "a/.",
            "a.",
            "a./b",
            "a\\b",
            "a%2fb",
            "%2e%2e",
            "a\0",
            "a\nb",
            "\u{2025}",
            "a\u{ff0f}b",
            "...",
            &"x".repeat(256),
            &"x/".repeat(501),
        ] {
            assert!(text.parse::<KeyPrefix>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn narrowing_keeps_the_wider_prefix(a in "[a-z/.]{0,12}", b in ".{0,12}") {
            if let (Ok(a), Ok(b)) = (a.parse::<KeyPrefix>(), b.parse::<KeyPrefix>()) {
                let narrow = a.narrowed_by(&b).unwrap();
                prop_assert_eq!(a.strip(narrow.as_str()), Some(b.as_str()));
                prop_assert_eq!(narrow.as_str().parse::<KeyPrefix>(), Ok(narrow.clone()));
                prop_assert!(narrow.segments().all(|name| !matches!(name, "" | "." | "..")));
            }
        }
    }
}
