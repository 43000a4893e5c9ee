//! The languages of programs, and how the language of a file is guessed.

use std::{fmt, path::Path, str::FromStr};

use serde::{Deserialize, Serialize};

/// A language that a sandbox can run.
///
/// Python, Node.js and Bash are the languages of the contract: their interpreters are started
/// ahead. An image may have interpreters of the others, which run in cold cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// CPython, started as `python3 main.py`.
    Python,
    /// Node.js, started as `node main.js`.
    Node,
    /// GNU Bash, started as `bash main.sh`; `sh main.sh` in an image without Bash.
    Bash,
    /// The POSIX shell of the image, whichever that is.
    Sh,
    /// Ruby.
    Ruby,
    /// Perl.
    Perl,
    /// PHP.
    Php,
    /// TypeScript or JavaScript in Deno.
    Deno,
    /// TypeScript or JavaScript in Bun.
    Bun,
    /// R.
    R,
    /// Lua.
    Lua,
    /// Go: `go run`.
    Go,
    /// Java: a program in a single source file.
    Java,
    /// Julia.
    Julia,
    /// Tcl.
    Tcl,
}

/// A name that is not a supported language.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown language {0:?}: use python, node or bash")]
pub struct UnknownLanguage(pub String);

/// How the programs of a language are started.
struct LanguageRow {
    /// The name on the wire and on the command line.
    name: &'static str,
    /// The file in the guest's home that the code is written to.
    main_file: &'static str,
    /// The file names of its interpreter, the preferred one first.
    interpreters: &'static [&'static str],
    /// The arguments before the main file.
    arguments: &'static [&'static str],
}

const fn row(
    name: &'static str,
    main_file: &'static str,
    interpreters: &'static [&'static str],
    arguments: &'static [&'static str],
) -> LanguageRow {
    LanguageRow { name, main_file, interpreters, arguments }
}

/// One row for each language, in the order of the variants.
const TABLE: [LanguageRow; Language::ALL.len()] = [
    row("python", "main.py", &["python3", "python"], &[]),
    row("node", "main.js", &["node", "nodejs"], &[]),
    row("bash", "main.sh", &["bash"], &[]),
    row("sh", "main.sh", &["sh"], &[]),
    row("ruby", "main.rb", &["ruby"], &[]),
    row("perl", "main.pl", &["perl"], &[]),
    row("php", "main.php", &["php"], &[]),
    // The cell is the sandbox, and Deno has no terminal to ask for permissions.
    row("deno", "main.ts", &["deno"], &["run", "--allow-all", "--quiet"]),
    row("bun", "main.ts", &["bun"], &["run"]),
    row("r", "main.R", &["Rscript"], &[]),
    row("lua", "main.lua", &["lua", "lua5.4", "lua5.3", "luajit"], &[]),
    row("go", "main.go", &["go"], &["run"]),
    row("java", "Main.java", &["java"], &[]),
    row("julia", "main.jl", &["julia"], &[]),
    row("tcl", "main.tcl", &["tclsh"], &[]),
];

impl Language {
    /// Every language, in display order.
    pub const ALL: [Self; 15] = [
        Self::Python,
        Self::Node,
        Self::Bash,
        Self::Sh,
        Self::Ruby,
        Self::Perl,
        Self::Php,
        Self::Deno,
        Self::Bun,
        Self::R,
        Self::Lua,
        Self::Go,
        Self::Java,
        Self::Julia,
        Self::Tcl,
    ];

    /// The languages of the contract, which every sandbox of the image `host` accepts.
    pub const CORE: [Self; 3] = [Self::Python, Self::Node, Self::Bash];

    const fn row(self) -> &'static LanguageRow {
        &TABLE[self as usize]
    }

    /// The name on the wire and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The file in the guest's home that the code is written to.
    #[must_use]
    pub const fn main_file(self) -> &'static str {
        self.row().main_file
    }

    /// The interpreter, as looked up on the guest's `PATH`.
    #[must_use]
    pub const fn interpreter(self) -> &'static str {
        self.row().interpreters[0]
    }

    /// The file names that its interpreter may have, the preferred one first.
    #[must_use]
    pub const fn interpreter_names(self) -> &'static [&'static str] {
        self.row().interpreters
    }

    /// The interpreter's arguments before the main file.
    #[must_use]
    pub const fn arguments(self) -> &'static [&'static str] {
        self.row().arguments
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
        let error = "cobol".parse::<Language>().unwrap_err();
        assert_eq!(error.to_string(), "unknown language \"cobol\": use python, node or bash");
    }

    #[test]
    fn the_table_has_the_row_of_each_language_and_its_name_on_the_wire() {
        for language in Language::ALL {
            assert_eq!(serde_json::to_value(language).unwrap(), language.name());
            assert_eq!(language.name().parse(), Ok(language));
        }
    }
}
