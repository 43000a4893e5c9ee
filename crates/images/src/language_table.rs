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
    use cloche_model::Language;

    use super::*;

    #[test]
    fn the_table_agrees_with_the_languages_of_requests() {
        let mut known: Vec<&str> = Language::ALL.iter().map(|language| language.name()).collect();
        let mut listed: Vec<&str> = all_languages().iter().map(|entry| &entry.name[..]).collect();
        known.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, known);
        for entry in all_languages() {
            let language: Language = entry.name.parse().unwrap();
            assert_eq!(entry.main_file, language.main_file(), "{language}");
            assert_eq!(entry.arguments, language.arguments(), "{language}");
            assert_eq!(entry.programs[0], language.interpreter(), "{language}");
        }
    }

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
