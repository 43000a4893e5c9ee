//! The path of a file below a home, in the form that callers write.
//!
//! Paths are bytes, and callers write text. A byte that is not valid UTF-8 is written as `\xFF`,
//! with two uppercase hex digits. Where a name contains such a sequence literally, its backslash is
//! written `\x5C`. All other names are written unchanged.

use std::{fmt, str::FromStr};

use crate::Invalid;

/// The mount point of a home. A path with this prefix means the same as the path without it.
const MOUNTED: &str = "/home/baponi";

/// A path below a home: names separated by `/`, none of them empty, `.` or `..`, and no NUL.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HomePath {
    bytes: Vec<u8>,
    text: String,
}

impl HomePath {
    /// The limit on bytes of a path.
    pub const MAX_BYTES: usize = 4095;

    /// The path in its text form, without leading or trailing slash.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The path as bytes, as stored in the home.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The text form of a path.
    #[must_use]
    pub fn text_of(path: &[u8]) -> String {
        let mut text = String::with_capacity(path.len());
        for chunk in path.utf8_chunks() {
            for (at, letter) in chunk.valid().char_indices() {
                match decode_escape(&chunk.valid().as_bytes()[at..]) {
                    Some(_) => text.push_str("\\x5C"),
                    None => text.push(letter),
                }
            }
            text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02X}")));
        }
        text
    }

    /// The bytes of a path in text form.
    #[must_use]
    pub fn bytes_of(text: &str) -> Vec<u8> {
        let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
        while let Some((first, after)) = rest.split_first() {
            let (byte, left) = match decode_escape(rest) {
                Some(byte) => (byte, &rest[ESCAPE..]),
                None => (*first, after),
            };
            bytes.push(byte);
            rest = left;
        }
        bytes
    }

    /// Parses a percent-decoded path from a URL, which may contain bytes that are not UTF-8.
    ///
    /// # Errors
    /// When it is not a valid path.
    pub fn from_url(decoded: &[u8]) -> Result<Self, Invalid> {
        let mut text = String::new();
        for chunk in decoded.utf8_chunks() {
            text.push_str(chunk.valid());
            text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02X}")));
        }
        text.parse()
    }

    /// Parses a directory: `None` for the home itself, or a path below it.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse_directory(text: &str) -> Result<Option<Self>, Invalid> {
        let mounted = text.strip_prefix(MOUNTED).filter(|rest| is_below_home(rest));
        let text = mounted.map_or(text, |rest| rest.strip_prefix('/').unwrap_or(rest));
        match text {
            "" | "/" | "." | "./" => Ok(None),
            text => text.strip_suffix('/').unwrap_or(text).parse().map(Some),
        }
    }
}

/// The length of an escaped byte.
const ESCAPE: usize = 4;

/// The escaped byte at the beginning of a text, if there is one.
fn decode_escape(text: &[u8]) -> Option<u8> {
    let digits = text.get(..ESCAPE)?.strip_prefix(b"\\x")?;
    let digit = |at: usize| match digits[at] {
        digit @ b'0'..=b'9' => Some(digit - b'0'),
        digit @ b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    };
    let byte = digit(0)? << 4 | digit(1)?;
    (byte >= 0x80 || byte == b'\\').then_some(byte)
}

/// True for `/home/baponi` and `/home/baponi/a`, but not for `/home/baponito`.
fn is_below_home(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}

impl FromStr for HomePath {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let mounted = text.strip_prefix(MOUNTED).and_then(|rest| rest.strip_prefix('/'));
        let path = mounted.or_else(|| text.strip_prefix("./")).unwrap_or(text);
        let bytes = Self::bytes_of(path);
        if path.is_empty() || path.len() > Self::MAX_BYTES {
            let (most, got) = (Self::MAX_BYTES, path.len());
            return Err(Invalid::new(format!("path must be 1 to {most} bytes, got {got}")));
        }
        if path.starts_with('/') {
            return Err(Invalid::new(
                "path must be relative to the home, or begin with /home/baponi/",
            ));
        }
        let odd = |name: &[u8]| matches!(name, b"" | b"." | b"..") || name.len() > 255;
        if bytes.contains(&0) || bytes.split(|byte| *byte == b'/').any(odd) {
            return Err(Invalid::new(
                "path must be names separated by /: none empty, . or .., none above 255 bytes, and \
                 no NUL",
            ));
        }
        Ok(Self { text: Self::text_of(&bytes), bytes })
    }
}

impl fmt::Display for HomePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn a_path_that_could_leave_the_home_is_refused() {
        for text in [
            "",
            "/",
            "..",
            "../a",
            "a/../b",
            "a//b",
            "a/",
            "/etc/passwd",
            "/home/baponi",
            "a/./b",
            "/home/baponi/../x",
            "/home/baponito/a",
            "a\0b",
            ".",
            &"x".repeat(256),
            &"x/".repeat(2100),
        ] {
            assert!(text.parse::<HomePath>().is_err(), "{text:?}");
        }
        for (text, path) in [
            ("a", "a"),
            ("/home/baponi/a/b", "a/b"),
            ("./a", "a"),
            ("...", "..."),
            ("a b\nc/%2e%2e", "a b\nc/%2e%2e"),
            ("home/baponi/a", "home/baponi/a"),
        ] {
            assert_eq!(text.parse::<HomePath>().unwrap().as_str(), path);
        }
    }

    #[test]
    fn the_home_itself_is_a_directory() {
        for text in ["", "/", ".", "/home/baponi", "/home/baponi/"] {
            assert_eq!(HomePath::parse_directory(text), Ok(None), "{text:?}");
        }
        let below = HomePath::parse_directory("/home/baponi/src/").unwrap().unwrap();
        assert_eq!(below.as_str(), "src");
        for text in ["..", "/etc", "/home/baponito", "a/../.."] {
            assert!(HomePath::parse_directory(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_escaped() {
        for (bytes, text) in [
            (&b"a\xff\xfeb"[..], r"a\xFF\xFEb"),
            (b"caf\xc3\xa9", "caf\u{e9}"),
            (br"\xFF", r"\x5CxFF"),
            (br"\x5C", r"\x5Cx5C"),
            (br"C:\x41\xff\", r"C:\x41\xff\"),
        ] {
            assert_eq!(HomePath::text_of(bytes), text);
            let path: HomePath = text.parse().unwrap();
            assert_eq!((path.as_bytes(), path.as_str()), (bytes, text));
        }
        assert_eq!(HomePath::from_url(b"d/\xff").unwrap().as_bytes(), b"d/\xff");
        assert_eq!(HomePath::from_url(br"d/\xFF").unwrap().as_bytes(), b"d/\xff");
        assert!(HomePath::from_url(b"../\xff").is_err());
    }

    proptest! {
        #[test]
        fn every_name_round_trips_through_text(
            name in proptest::collection::vec(1_u8.., 1..30),
            odd in r"(\\|x|5|C|F|\xff){1,20}",
        ) {
            for bytes in [&name, odd.as_bytes()] {
                prop_assert_eq!(HomePath::bytes_of(&HomePath::text_of(bytes)), bytes);
            }
        }

        #[test]
        fn parsing_is_idempotent(text in ".{0,40}") {
            if let Ok(path) = text.parse::<HomePath>() {
                prop_assert!(!path.as_str().starts_with('/'));
                prop_assert!(path.as_str().split('/').all(|name| !matches!(name, "" | "." | "..")));
                prop_assert_eq!(path.as_str().parse::<HomePath>(), Ok(path.clone()));
            }
        }
    }
}
