//! The corpus: programs as models write them. Warm in a cell, each must print and end exactly as in
//! the same interpreter, started bare in the same root.

use std::{collections::BTreeSet, sync::Arc};

use cloche_model::Language;

use crate::{
    bare::BareStart,
    case::{self, Case},
    image::TestImage,
    support::can_sandbox,
    ways::{Way, Ways},
};

/// The programs that were compared, and what differs.
#[derive(Default)]
pub(crate) struct CorpusReport {
    pub(crate) compared: usize,
    /// Programs that need a module which the root does not have.
    pub(crate) left_out: Vec<String>,
    differences: Vec<String>,
}

impl CorpusReport {
    /// Compares the programs of these languages on an image that `scripts/setup-tests` has made, or
    /// on this host. `None` if the test is skipped.
    pub(crate) async fn make(image: Option<&'static str>, languages: &[Language]) -> Option<Self> {
        if !can_sandbox() {
            return None;
        }
        let image = match image {
            Some(name) => Some(Arc::new(TestImage::import(name).await?)),
            None => None,
        };
        let mut report = Self::default();
        for language in languages {
            report.add_language(image.as_ref(), *language).await;
        }
        Some(report)
    }

    async fn add_language(&mut self, image: Option<&Arc<TestImage>>, language: Language) {
        let cold = Ways::start_on(image, Way::Cold, &[]).await;
        let warm = match language {
            Language::Python => Some(Ways::start_on(image, Way::Template, &[]).await),
            Language::Node => Some(Ways::start_on(image, Way::Started, &[]).await),
            _ => None,
        };
        let cases = case::corpus(language);
        let missing = find_missing_modules(&cold, &cases).await;
        let image = image.map(Arc::as_ref);
        let bare = BareStart::ask(&cold, image, language).await;
        for case in cases {
            if case.needs.iter().any(|module| missing.contains(module)) {
                self.left_out.push(case.name);
                continue;
            }
            let (expected, seen) =
                (bare.run(image, &case), warm.as_ref().unwrap_or(&cold).run(&case).await);
            self.compared += 1;
            let difference = expected.difference(&seen);
            self.differences.extend(difference.map(|what| format!("{}: {what}", case.name)));
        }
        cold.stop().await;
        if let Some(warm) = warm {
            warm.stop().await;
        }
    }

    /// Demands that nothing differs and that this many programs were compared.
    pub(crate) fn check(&self, least: usize) {
        assert!(self.differences.is_empty(), "{}", self.differences.join("\n"));
        assert!(self.compared >= least, "only {} compared: {:?}", self.compared, self.left_out);
    }
}

/// The modules that programs need and the interpreter of this root does not have.
async fn find_missing_modules(cold: &Ways, cases: &[Case]) -> BTreeSet<String> {
    let needed: BTreeSet<&str> =
        cases.iter().flat_map(|case| &case.needs).map(String::as_str).collect();
    if needed.is_empty() {
        return BTreeSet::new();
    }
    let code = format!(
        "from importlib.util import find_spec\nfor name in sorted({needed:?}):\n    \
         if not find_spec(name): print(name)"
    );
    let seen = cold.run(&Case::new(Language::Python, "modules", code)).await;
    assert_eq!(seen.stderr, b"", "{}", String::from_utf8_lossy(&seen.stderr));
    String::from_utf8_lossy(&seen.stdout).lines().map(str::to_owned).collect()
}
