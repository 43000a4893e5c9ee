//! Runs in: server (no capabilities).
//!
//! The table of languages: names of interpreters and where they are.

use std::sync::OnceLock;

use serde::Deserialize;

/// Where the interpreter of a language is in an image.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LanguageEntry {
    pub(crate) name: String,
    pub(crate) programs: Vec<String>,
    #[serde(default)]
    pub(crate) versioned: Vec<String>,
    #[serde(default)]
    pub(crate) directories: Vec<String>,
    #[serde(default)]
    pub(crate) arguments: Vec<String>,
    pub(crate) main_file: String,
}

#[derive(Deserialize)]
struct LanguageFile {
    language: Vec<LanguageEntry>,
}

/// Every language that is searched for.
pub(crate) fn all_languages() -> &'static [LanguageEntry] {
    static TABLE: OnceLock<Vec<LanguageEntry>> = OnceLock::new();
    TABLE.get_or_init(|| {
        // A test reads the table, so a build with a malformed one is never shipped.
        let read = toml::from_str::<LanguageFile>(include_str!("../data/languages.toml"));
        read.map(|file| file.language).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_can_be_read_and_has_each_language_once() {
        let names: Vec<&str> = all_languages().iter().map(|entry| &entry.name[..]).collect();
        assert!(names.contains(&"python") && names.contains(&"node") && names.len() >= 12);
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), names.len(), "{names:?}");
    }
}
