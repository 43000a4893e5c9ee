//! Runs in: all. Which languages an image can run, and by which interpreter.

use crate::{ImageRoot, Interpreter, Language};

impl ImageRoot {
    /// The interpreter that runs programs of a language. Without Bash the shell runs them: most
    /// scripts of a few lines need no more.
    #[must_use]
    pub fn interpreter_of(&self, language: Language) -> Option<&Interpreter> {
        let found = self.interpreters.get(language.name());
        match language {
            Language::Bash => found.or_else(|| self.interpreters.get(Language::Sh.name())),
            _ => found,
        }
    }

    /// The languages of this image, in display order.
    pub fn languages(&self) -> impl Iterator<Item = Language> {
        Language::ALL.into_iter().filter(|language| self.interpreter_of(*language).is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use super::*;
    use crate::{ImageDigest, InterpreterTable, SandboxShape};

    fn shape(languages: &[&str]) -> SandboxShape {
        let found = languages.iter().map(|language| Interpreter {
            language: (*language).to_owned(),
            path: format!("/bin/{language}"),
            arguments: Vec::new(),
            main_file: "main".to_owned(),
            version: None,
        });
        let root = ImageRoot {
            digest: ImageDigest::from_sha256([7; 32]),
            layers: Vec::new(),
            env: BTreeMap::new(),
            workdir: None,
            interpreters: InterpreterTable { found: found.collect(), refused: Vec::new() },
        };
        SandboxShape {
            image: "tiny:1".to_owned(),
            root: Some(Arc::new(root)),
            ..SandboxShape::default()
        }
    }

    #[test]
    fn a_language_that_the_image_lacks_is_refused_with_what_it_has() {
        let refusal = |shape: SandboxShape, language| shape.check_language(language).unwrap_err();
        assert_eq!(
            refusal(shape(&["ruby", "sh"]), Language::Python).to_string(),
            "language: the image \"tiny:1\" has no python; it has bash, sh, ruby"
        );
        assert_eq!(
            refusal(shape(&[]), Language::Node).to_string(),
            "language: the image \"tiny:1\" has no node; it has no interpreter"
        );
        assert_eq!(
            refusal(SandboxShape::default(), Language::Ruby).to_string(),
            "language must be one of: python, node, bash; got \"ruby\""
        );
    }

    #[test]
    fn the_shell_runs_bash_programs_where_bash_is_missing() {
        let found = |languages: &[&str]| {
            let root = shape(languages).root.unwrap();
            root.interpreter_of(Language::Bash).map(|found| found.path.clone())
        };
        assert_eq!(found(&["sh"]).as_deref(), Some("/bin/sh"));
        assert_eq!(found(&["bash", "sh"]).as_deref(), Some("/bin/bash"));
        assert_eq!(found(&["python"]), None);
    }
}
