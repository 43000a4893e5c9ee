//! The shape of the sources: how a file opens, how long it is, what it may be called, and that
//! nothing is left for later.

use crate::{
    lexer::{code_only, has_word},
    rules::{CodeRules, TidyRules},
    tree::{TreeFile, Violation},
};

/// Words for work that was left lying. Split, so that this file has none.
const LATER: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];
/// Macros that promise code.
const PROMISES: [&str; 2] = [concat!("to", "do"), concat!("unimple", "mented")];
/// Endings of files that are sources; prose may speak of unfinished work.
const SOURCES: [&str; 9] = [".rs", ".sh", ".py", ".js", ".ts", ".toml", ".yml", ".sql", "Makefile"];

/// Finds everything that this page of the style guide forbids.
pub(crate) fn check_shape(rules: &TidyRules, files: &[TreeFile]) -> Vec<Violation> {
    let each = |file| {
        let mut found = check_names(&rules.code, file);
        found.extend(find_leftovers(rules, file));
        found.extend(check_opening(file));
        found.extend(check_length(&rules.code, file));
        found
    };
    files.iter().flat_map(each).collect()
}

fn check_names(rules: &CodeRules, file: &TreeFile) -> Vec<Violation> {
    let mut found = Vec::new();
    let Some(text) = file.rust_text() else { return found };
    if file.path.ends_with("/mod.rs") {
        found.push(file.violation_at(1, "name the file after the module instead of `mod.rs`"));
    }
    for empty in &rules.empty_names {
        let message = format!("`{empty}` says nothing; name what it is for");
        let stem = file.path.trim_end_matches(".rs");
        if stem.split('/').any(|part| part == empty) {
            found.push(file.violation_at(1, &message));
        }
        let declares = format!("mod {empty}");
        for (at, line) in code_only(text).lines().enumerate() {
            if has_word(line, &declares) {
                found.push(file.violation_at(at + 1, &message));
            }
        }
    }
    found
}

fn find_leftovers(rules: &TidyRules, file: &TreeFile) -> Vec<Violation> {
    let is_script = |text: &str| text.starts_with("#!");
    let is_source =
        |text: &str| SOURCES.iter().any(|end| file.path.ends_with(end)) || is_script(text);
    let Some(text) = file.text.as_deref().filter(|text| is_source(text)) else { return Vec::new() };
    if rules.text.is_verbatim(&file.path) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for word in LATER.into_iter().filter(|word| has_word(line, word)) {
            found.push(file.violation_at(at + 1, format!("{word}: do it now or write an issue")));
        }
    }
    let code = file.rust_text().map(code_only).unwrap_or_default();
    for (at, line) in code.lines().enumerate() {
        for promise in PROMISES.map(|name| format!("{name}!")) {
            if has_word(line, &promise) {
                found.push(
                    file.violation_at(at + 1, format!("{promise} is a promise; write the code")),
                );
            }
        }
    }
    found
}

fn check_opening(file: &TreeFile) -> Option<Violation> {
    let text = file.rust_text().filter(|_| file.path.starts_with("crates/"))?;
    let says = text.lines().next().and_then(|line| line.strip_prefix("//!"));
    let speaks = says.is_some_and(|words| words.trim().len() > 1);
    (!speaks).then(|| file.violation_at(1, "open the file with `//!` and what it is for"))
}

fn check_length(rules: &CodeRules, file: &TreeFile) -> Option<Violation> {
    let text = file.rust_text().filter(|_| !file.is_test())?;
    let lines = production_lines(text);
    let most = rules.most_lines;
    (lines > most).then(|| {
        file.violation_at(most + 1, format!("{lines} lines before the tests; {most} is the most"))
    })
}

/// The lines before `#[cfg(test)] mod … {`. A declaration `#[cfg(test)] mod name;` does not end
/// the production code.
pub(crate) fn production_lines(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let opens = |line: &&&str| !line.starts_with("#[");
    let starts_tests = |at: usize| {
        let next = lines[at + 1..].iter().find(opens);
        lines[at] == "#[cfg(test)]"
            && next.is_some_and(|line| line.contains("mod ") && line.ends_with('{'))
    };
    (0..lines.len()).find(|&at| starts_tests(at)).unwrap_or(lines.len())
}

#[cfg(test)]
mod tests {
    use super::{check_shape, production_lines};
    use crate::tree::samples::{list_complaints, sample_file};

    fn source(path: &str, text: &str) -> Vec<String> {
        list_complaints(check_shape, &[sample_file(path, text)])
    }

    #[test]
    fn a_good_file_passes() {
        assert!(source("crates/jail/src/step.rs", "//! The steps.\nfn f() {}\n").is_empty());
    }

    #[test]
    fn a_file_must_say_what_it_is_for() {
        assert_eq!(source("crates/jail/src/step.rs", "fn f() {}\n").len(), 1);
        assert_eq!(source("crates/jail/src/step.rs", "").len(), 1);
        assert_eq!(source("crates/jail/src/step.rs", "//! .\n").len(), 1);
    }

    #[test]
    fn a_name_must_say_something() {
        let text = "//! Things.\n";
        for path in ["crates/a/src/utils.rs", "crates/common/src/lib.rs", "crates/a/src/x/mod.rs"] {
            assert_eq!(source(path, text).len(), 1, "{path}");
        }
        assert_eq!(source("crates/a/src/lib.rs", "//! Lib.\npub mod helpers;\n").len(), 1);
        assert!(source("crates/a/src/lib.rs", "//! Lib.\npub mod commonplace;\n").is_empty());
    }

    #[test]
    fn nothing_is_left_for_later() {
        let later = concat!("//! Lib.\n// TO", "DO: more\n");
        assert_eq!(source("crates/a/src/lib.rs", later).len(), 1);
        assert_eq!(source("scripts/x", concat!("#!/bin/bash\n# FIX", "ME\n")).len(), 1);
        let promise = concat!("//! Lib.\nfn f() { to", "do!() }\n");
        assert_eq!(source("crates/a/src/lib.rs", promise).len(), 1);
        let talk = concat!("//! Lib.\nlet x = \"to", "do!()\";\n");
        assert!(source("crates/a/src/lib.rs", talk).is_empty());
        assert!(source("docs/style.md", concat!("no TO", "DO\n")).is_empty());
    }

    #[test]
    fn a_file_has_a_budget_and_tests_do_not_count() {
        let long = format!("//! Lib.\n{}", "x;\n".repeat(400));
        let found = source("crates/a/src/lib.rs", &long);
        assert_eq!(found, ["crates/a/src/lib.rs:401: 401 lines before the tests; 400 is the most"]);
        assert!(source("crates/a/tests/all.rs", &long).is_empty());
        let tested = format!("//! Lib.\n#[cfg(test)]\nmod tests {{\n{}}}\n", "x;\n".repeat(500));
        assert!(source("crates/a/src/lib.rs", &tested).is_empty());
    }

    #[test]
    fn a_declared_test_module_does_not_end_the_count() {
        assert_eq!(production_lines("a\n#[cfg(test)]\nmod tests;\nb\nc\n"), 5);
        assert_eq!(production_lines("a\n#[cfg(test)]\n#[x]\nmod tests {\nb\n}\n"), 1);
    }
}
