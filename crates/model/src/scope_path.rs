//! A path that bounds what a storage mount shows. Every level of the scope is such a path, counted
//! from the root of the bucket or volume; two levels are compared segment by segment.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// Plain segments joined by `/`, without one at either end. Empty is the root.
///
/// A value has one spelling and one meaning: what could be read in two ways is refused, never
/// cleaned up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ScopePath(String);

impl ScopePath {
    /// The limit on bytes of a path, below the limit of object stores on keys.
    pub const MAX_BYTES: usize = 768;

    /// The root: it bounds nothing.
    #[must_use]
    pub const fn root() -> Self {
        Self(String::new())
    }

    /// Checks a path. One `/` at the end is allowed, because people write directories so.
    ///
    /// # Errors
    /// When a segment is empty, `.`, `..`, or could be read in two ways.
    pub fn parse(field: &str, text: &str) -> Result<Self, Invalid> {
        let path = text.strip_suffix('/').unwrap_or(text);
        if text.is_empty() {
            return Ok(Self::root());
        }
        if path.len() > Self::MAX_BYTES {
            let most = Self::MAX_BYTES;
            return Err(Invalid::new(format!("{field} must be at most {most} bytes")));
        }
        match path.split('/').all(is_plain_segment) {
            true => Ok(Self(path.to_owned())),
            false => Err(Invalid::new(format!(
                "{field}: {text:?} contains a path segment that is not allowed; use names without \
                 leading or doubled slashes, dots alone, percent signs and backslashes"
            ))),
        }
    }

    /// The path as text, without a slash at either end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it bounds nothing.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `other` is this path or lies below it. `users/1` does not contain `users/10`.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        let rest = other.0.strip_prefix(&self.0);
        self.is_root() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The narrower of two levels; `None` if they have nothing in common.
    #[must_use]
    pub fn narrow_to(&self, other: &Self) -> Option<Self> {
        match (self.contains(other), other.contains(self)) {
            (true, _) => Some(other.clone()),
            (false, true) => Some(self.clone()),
            (false, false) => None,
        }
    }
}

impl fmt::Display for ScopePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_root() { "/" } else { &self.0 })
    }
}

impl TryFrom<String> for ScopePath {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        Self::parse("path", &text)
    }
}

impl From<ScopePath> for String {
    fn from(path: ScopePath) -> Self {
        path.0
    }
}

/// Characters that some software reads as a dot or as a separator, after a change of encoding or
/// normal form.
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

/// Whether a segment has only one possible meaning: no `..`, no other spelling of a separator, no
/// escapes, nothing that looks like a dot or a slash or is not seen, no dot or space at its end,
/// which some stores drop.
fn is_plain_segment(segment: &str) -> bool {
    let odd = |c: char| {
        c.is_control() || matches!(c, '\\' | '%') || LOOKALIKES.contains(&c) || is_invisible(c)
    };
    let trimmed = segment.trim_matches(char::is_whitespace);
    !segment.is_empty()
        && segment.len() <= 255
        && trimmed.len() == segment.len()
        && !segment.contains("..")
        && !segment.ends_with('.')
        && !segment.contains(odd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> ScopePath {
        ScopePath::parse("path", text).unwrap()
    }

    #[test]
    fn levels_are_compared_by_segments() {
        assert!(path("users/1").contains(&path("users/1")));
        assert!(path("users/1").contains(&path("users/1/a/b/")));
        for other in ["users/10", "users", "Users/1", "users/1x/1", "other", ""] {
            assert!(!path("users/1").contains(&path(other)), "{other}");
        }
        assert!(path("").contains(&path("a")));
    }

    #[test]
    fn the_narrower_of_two_levels_holds() {
        let narrow = |a: &str, b: &str| path(a).narrow_to(&path(b)).map(String::from);
        assert_eq!(narrow("", "a/b").as_deref(), Some("a/b"));
        assert_eq!(narrow("a/b", "a").as_deref(), Some("a/b"));
        assert_eq!(narrow("a", "a/b").as_deref(), Some("a/b"));
        assert_eq!(narrow("a", "ab"), None);
        assert_eq!(narrow("a/x", "a/y"), None);
    }

    #[test]
    fn plain_names_of_all_kinds_are_allowed() {
        for text in ["a", "a/b.csv", ".hidden/x", "Größe/表", "a b/c", "year=2026/part-0", "a.b.c"]
        {
            assert!(ScopePath::parse("path", text).is_ok(), "{text}");
        }
    }
}
