//! The languages of programs, and how the language of a file is guessed.

use std::{fmt, path::Path, str::FromStr};

use serde::{Deserialize, Serialize};

/// A language that a sandbox can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// CPython, started as `python3 main.py`.
    Python,
    /// Node.js, started as `node main.js`.
    Node,
    /// GNU Bash, started as `bash main.sh`.
    Bash,
}

/// A name that is not a supported language.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown language {0:?}: use python, node or bash")]
pub struct UnknownLanguage(pub String);

impl Language {
    /// Every language, in display order.
    pub const ALL: [Self; 3] = [Self::Python, Self::Node, Self::Bash];

    /// The name on the wire and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Bash => "bash",
        }
    }

    /// The file in the guest's home that the code is written to.
    #[must_use]
    pub const fn main_file(self) -> &'static str {
        match self {
            Self::Python => "main.py",
            Self::Node => "main.js",
            Self::Bash => "main.sh",
        }
    }

    /// The interpreter, as looked up on the guest's `PATH`.
    #[must_use]
    pub const fn interpreter(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::Node => "node",
            Self::Bash => "bash",
        }
    }

    /// Guesses the language from the extension, then from the first line (`#!…`).
    #[must_use]
    pub fn guess_from_file(path: &Path, code: &[u8]) -> Option<Self> {
        let extension = path.extension().and_then(|extension| extension.to_str());
        match extension {
            Some("py" | "pyw") => return Some(Self::Python),
            Some("js" | "mjs" | "cjs") => return Some(Self::Node),
            Some("sh" | "bash") => return Some(Self::Bash),
            _ => {}
        }
        Self::from_shebang(code)
    }

    fn from_shebang(code: &[u8]) -> Option<Self> {
        let line = code.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
        let line = std::str::from_utf8(line).ok()?;
        let mut words = line.split_whitespace();
        let mut program = words.next()?.rsplit('/').next()?;
        if program == "env" {
            program = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
        }
        let program = program.rsplit('/').next()?;
        match program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') {
            "python" | "pypy" => Some(Self::Python),
            "node" | "nodejs" => Some(Self::Node),
            "bash" | "sh" | "dash" => Some(Self::Bash),
            _ => None,
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Language {
    type Err = UnknownLanguage;

    fn from_str(name: &str) -> Result<Self, UnknownLanguage> {
        Self::ALL
            .into_iter()
            .find(|language| language.name() == name)
            .ok_or_else(|| UnknownLanguage(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_takes_precedence_over_the_first_line() {
        assert_eq!(
            Language::guess_from_file(Path::new("a.py"), b"#!/bin/sh"),
            Some(Language::Python)
        );
        assert_eq!(Language::guess_from_file(Path::new("a.mjs"), b""), Some(Language::Node));
    }

    #[test]
    fn the_first_line_decides_without_a_known_extension() {
        for (line, language) in [
            (&b"#!/bin/sh\n"[..], Some(Language::Bash)),
            (b"#!/usr/bin/env python3.11\nprint(1)", Some(Language::Python)),
            (b"#!/usr/bin/env -S node --no-warnings\n", Some(Language::Node)),
            (b"#!/usr/bin/perl\n", None),
            (b"print(1)", None),
            (b"#!", None),
        ] {
            assert_eq!(Language::guess_from_file(Path::new("script"), line), language, "{line:?}");
        }
    }

    #[test]
    fn an_unknown_language_is_named_in_the_error() {
        let error = "ruby".parse::<Language>().unwrap_err();
        assert_eq!(error.to_string(), "unknown language \"ruby\": use python, node or bash");
    }
}
