//! The path of a file below a home, as a caller may write it.

use std::{fmt, str::FromStr};

use crate::Invalid;

/// Where a home is mounted; a path that begins with it means the same without.
const MOUNTED: &str = "/home/baponi";

/// A path below a home: names separated by `/`, none of them empty, `.` or `..`, and no NUL.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HomePath(String);

impl HomePath {
    /// The most bytes one may have.
    pub const MAX_BYTES: usize = 4095;

    /// Without a slash at the beginning or the end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directory of everything: the home itself, or a path below it.
    ///
    /// # Errors
    /// When it is neither.
    pub fn directory(text: &str) -> Result<Option<Self>, Invalid> {
        let mounted = text.strip_prefix(MOUNTED).filter(|rest| is_rest(rest));
        let text = mounted.map_or(text, |rest| rest.strip_prefix('/').unwrap_or(rest));
        match text {
            "" | "/" | "." | "./" => Ok(None),
            text => text.strip_suffix('/').unwrap_or(text).parse().map(Some),
        }
    }
}

/// `/home/baponi` and `/home/baponi/a`, but not `/home/baponito`.
fn is_rest(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}

impl FromStr for HomePath {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let mounted = text.strip_prefix(MOUNTED).and_then(|rest| rest.strip_prefix('/'));
        let path = mounted.or_else(|| text.strip_prefix("./")).unwrap_or(text);
        if path.is_empty() || path.len() > Self::MAX_BYTES {
            let (most, got) = (Self::MAX_BYTES, path.len());
            return Err(Invalid::new(format!("path must be 1 to {most} bytes, got {got}")));
        }
        if path.starts_with('/') {
            return Err(Invalid::new(
                "path must be relative to the home, or begin with /home/baponi/",
            ));
        }
        let odd = |name: &str| matches!(name, "" | "." | "..") || name.len() > 255;
        if path.contains('\0') || path.split('/').any(odd) {
            return Err(Invalid::new(
                "path must be names separated by /: none empty, . or .., none above 255 bytes, and \
                 no NUL",
            ));
        }
        Ok(Self(path.to_owned()))
    }
}

impl fmt::Display for HomePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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
            assert_eq!(HomePath::directory(text), Ok(None), "{text:?}");
        }
        let below = HomePath::directory("/home/baponi/src/").unwrap().unwrap();
        assert_eq!(below.as_str(), "src");
        for text in ["..", "/etc", "/home/baponito", "a/../.."] {
            assert!(HomePath::directory(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_was_accepted_is_accepted_again_unchanged(text in ".{0,40}") {
            if let Ok(path) = text.parse::<HomePath>() {
                prop_assert!(!path.as_str().starts_with('/'));
                prop_assert!(path.as_str().split('/').all(|name| !matches!(name, "" | "." | "..")));
                prop_assert_eq!(path.as_str().parse::<HomePath>(), Ok(path.clone()));
            }
        }
    }
}
