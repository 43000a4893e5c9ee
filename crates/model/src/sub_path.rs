//! Paths that narrow a storage mount: `/data/{slug}/{path}`, with unambiguous segments only.

use crate::{Invalid, KeyPrefix};

/// The limit on entries of a request.
const MAX_SUB_PATHS: usize = 10;
/// The limit on characters of an entry.
const MAX_SUB_PATH_CHARS: usize = 512;

/// One well-formed entry. The engine checks whether its slug is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubPath {
    slug: String,
    path: KeyPrefix,
}

impl SubPath {
    /// The storage connection it narrows.
    #[must_use]
    pub fn slug(&self) -> &str {
        &self.slug
    }

    /// The path from the root of the bucket or volume: plain segments joined by `/`, never empty.
    #[must_use]
    pub fn path(&self) -> &str {
        self.path.as_str().trim_end_matches('/')
    }

    /// The same, to be compared with the levels above it.
    #[must_use]
    pub const fn scope(&self) -> &KeyPrefix {
        &self.path
    }

    /// Checks the entries of a request.
    ///
    /// # Errors
    /// When there are too many, one is malformed, or two name the same connection.
    pub fn parse_all(entries: &[String]) -> Result<Vec<Self>, Invalid> {
        if entries.len() > MAX_SUB_PATHS {
            return Err(Invalid::new(format!(
                "sub_paths exceeds {MAX_SUB_PATHS} entries, got {}",
                entries.len()
            )));
        }
        let mut checked = Vec::<Self>::with_capacity(entries.len());
        for entry in entries {
            let path = Self::parse_entry(entry)?;
            if checked.iter().any(|other| other.slug == path.slug) {
                return Err(Invalid::new(format!(
                    "sub_paths: more than one entry for /data/{}; one is allowed",
                    path.slug
                )));
            }
            checked.push(path);
        }
        Ok(checked)
    }

    fn parse_entry(entry: &str) -> Result<Self, Invalid> {
        let chars = entry.chars().count();
        if chars > MAX_SUB_PATH_CHARS {
            return Err(Invalid::new(format!(
                "sub_paths: an entry exceeds {MAX_SUB_PATH_CHARS} characters, got {chars}"
            )));
        }
        let malformed =
            || Invalid::new(format!("sub_paths: {entry:?} must be /data/{{slug}}/{{path}}"));
        let rest = entry.strip_prefix("/data/").ok_or_else(malformed)?;
        let (slug, path) = rest.split_once('/').ok_or_else(malformed)?;
        if !is_slug(slug) || path.is_empty() {
            return Err(malformed());
        }
        let path = path.parse::<KeyPrefix>().map_err(|_| {
            Invalid::new(format!(
                "sub_paths: {entry:?} contains a path segment that is not allowed"
            ))
        })?;
        Ok(Self { slug: slug.to_owned(), path })
    }
}

fn is_slug(slug: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    !slug.is_empty() && slug.len() <= 63 && slug.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    #[test]
    fn an_entry_is_split_into_slug_and_path() {
        let checked = SubPath::parse_entry("/data/company-data/reports/q1").unwrap();
        assert_eq!((checked.slug(), checked.path()), ("company-data", "reports/q1"));
        assert_eq!(SubPath::parse_entry("/data/a/b/").unwrap().path(), "b");
    }

    #[test]
    fn an_ambiguous_path_is_refused() {
        for entry in [
            "",
            "/",
            "/data",
            "/data/",
            "/data/a",
            "/data/a/",
            "/data//b",
            "data/a/b",
            "/etc/passwd",
            "/data/a/../b",
            "/data/a/..",
            "/data/a/./b",
            "/data/a//b",
            "/data/a/%2e%2e/b",
            "/data/a/b%00",
            "/data/a/b\\c",
            "/data/a/b\0",
            "/data/a/\u{2025}/b",
            "/data/../a/b",
            "/data/A/b",
            "/data/a/b//",
            &format!("/data/a/{}", "x".repeat(512)),
        ] {
            assert!(SubPath::parse_entry(entry).is_err(), "{entry:?}");
        }
    }

    #[test]
    fn only_one_entry_for_each_mount_is_accepted() {
        let entries = ["/data/a/x".to_owned(), "/data/a/y".to_owned()];
        let error = SubPath::parse_all(&entries).unwrap_err();
        assert_eq!(error.to_string(), "sub_paths: more than one entry for /data/a; one is allowed");
        let many: Vec<_> = (0..11).map(|n| format!("/data/a{n}/x")).collect();
        let error = SubPath::parse_all(&many).unwrap_err();
        assert_eq!(error.to_string(), "sub_paths exceeds 10 entries, got 11");
    }

    proptest! {
        #[test]
        fn an_accepted_path_has_no_dot_segments(entry in "/data/[a-z]{1,3}/.{0,30}") {
            if let Ok(path) = SubPath::parse_entry(&entry) {
                prop_assert!(path.path().split('/').all(|s| !s.is_empty() && s != "." && s != ".."));
            }
        }
    }
}
