//! The rules as data, from `data/rules.toml`. Knows no check.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Everything that can be tuned.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TidyRules {
    /// Crates from the bottom up.
    pub(crate) order: Vec<String>,
    /// Which crates each crate may depend on.
    pub(crate) arrows: BTreeMap<String, Vec<String>>,
    /// Development dependencies that may point up.
    pub(crate) upward_dev_arrows: BTreeMap<String, Vec<String>>,
    pub(crate) code: CodeRules,
    pub(crate) text: TextRules,
}

/// Rules for Rust sources.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CodeRules {
    pub(crate) unsafe_home: String,
    pub(crate) most_lines: usize,
    pub(crate) empty_names: Vec<String>,
    /// Crates whose files say in which process they run.
    pub(crate) runs_in: Vec<String>,
    /// Type names that may be used more than once, with the reason.
    pub(crate) shared_type_names: BTreeMap<String, String>,
}

/// Rules for every text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TextRules {
    /// Prefixes or suffixes of paths that are left alone.
    pub(crate) verbatim: Vec<String>,
}

impl TidyRules {
    /// The rules of this project.
    pub(crate) fn load() -> Result<Self, toml::de::Error> {
        toml::from_str(include_str!("../data/rules.toml"))
    }
}

impl TextRules {
    /// Whether a file is kept as others wrote it.
    pub(crate) fn is_verbatim(&self, path: &str) -> bool {
        self.verbatim.iter().any(|mark| path.starts_with(mark) || path.ends_with(mark))
    }
}

#[cfg(test)]
mod tests {
    use super::TidyRules;

    #[test]
    fn every_arrow_points_down() {
        let rules = TidyRules::load().unwrap();
        let rank = |name: &String| rules.order.iter().position(|other| other == name).unwrap();
        for (from, targets) in &rules.arrows {
            assert!(targets.iter().all(|to| rank(to) < rank(from)), "{from} points up");
        }
        assert_eq!(rules.order.len(), rules.arrows.len());
    }
}
