//! Runs in: server (no capabilities), mount server (no capabilities). The path of an object below
//! the prefix of a mount.

use cloche_model::{Invalid, KeyPrefix};
use object_store::path::Path as StorePath;

/// The most bytes of a key, as S3 has it.
const MAX_KEY: usize = 1024;

/// The path of an object or directory below the prefix of a mount: plain names joined by `/`. It is
/// empty for the root of the mount.
///
/// A path is only ever made longer, by one name. So no path can leave its mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectPath(String);

impl ObjectPath {
    /// The path as text, without a separator at either end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the root of the mount.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The path of an entry of this directory.
    ///
    /// # Errors
    /// When the name is not one plain name.
    pub fn join(&self, name: &str) -> Result<Self, Invalid> {
        if !is_plain_name(name) {
            return Err(Invalid::new(
                "a name must not be empty, a dot segment, or have a separator",
            ));
        }
        Ok(Self(if self.0.is_empty() { name.to_owned() } else { format!("{}/{name}", self.0) }))
    }

    /// Parses plain names joined by `/`.
    ///
    /// # Errors
    /// When one of them is not plain.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let mut path = Self::default();
        for name in text.split('/').filter(|_| !text.is_empty()) {
            path = path.join(name)?;
        }
        Ok(path)
    }

    /// The key of the object, as the store's library names it.
    pub(super) fn key_below(&self, prefix: &KeyPrefix) -> Result<StorePath, Invalid> {
        let key = format!("{}{}", prefix.as_str(), self.0);
        if self.0.is_empty() || key.len() > MAX_KEY {
            return Err(Invalid::new("a key must be 1 to 1024 bytes"));
        }
        match StorePath::parse(&key) {
            Ok(parsed) if parsed.as_ref() == key => Ok(parsed),
            _ => Err(Invalid::new("this name cannot be a key")),
        }
    }

    /// The prefix of all keys below this directory; empty, or with a `/` at its end.
    pub(super) fn prefix_below(&self, prefix: &KeyPrefix) -> String {
        let separator = if self.0.is_empty() { "" } else { "/" };
        format!("{}{}{separator}", prefix.as_str(), self.0)
    }
}

/// Whether a text is one name of a file system that can be part of a key.
pub(super) fn is_plain_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
        && name.len() <= KeyPrefix::MAX_SEGMENT_BYTES
        && !name.contains(|c: char| c == '/' || c.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    #[test]
    fn a_path_cannot_leave_its_prefix() {
        let root = ObjectPath::default();
        for name in ["", ".", "..", "a/b", "/", "a\0", "a\n", &"x".repeat(256)] {
            assert!(root.join(name).is_err(), "{name:?}");
        }
        for text in ["../x", "a//b", "a/../b", "/a", "a/", "./a"] {
            assert!(ObjectPath::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_are_keys_byte_for_byte() {
        let prefix: KeyPrefix = "team".parse().unwrap();
        for name in ["100%.txt", "100%25.txt", "a b", "~[#]*", "ä", "..."] {
            let path = ObjectPath::default().join(name).unwrap();
            assert_eq!(path.key_below(&prefix).unwrap().as_ref(), format!("team/{name}"));
        }
    }

    proptest! {
        #[test]
        fn every_key_begins_with_the_prefix(text in ".{0,40}") {
            let prefix: KeyPrefix = "team/a".parse().unwrap();
            if let Ok(path) = ObjectPath::parse(&text)
                && let Ok(key) = path.key_below(&prefix)
            {
                prop_assert!(key.as_ref().starts_with("team/a/"));
                prop_assert!(key.as_ref().split('/').all(|name| !matches!(name, "" | "." | "..")));
            }
        }
    }
}
