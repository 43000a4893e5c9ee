//! `unsafe` has one folder, and an argument each time.

use crate::{
    lexer::{code_only, has_word},
    rules::TidyRules,
    tree::{TreeFile, Violation},
};

/// How many lines above an unsafe block its argument may start.
const REACH: usize = 25;

/// Finds the keyword outside of its folder, and in the folder without an argument.
pub(crate) fn check_unsafe(rules: &TidyRules, files: &[TreeFile]) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in files {
        let Some(text) = file.rust_text() else { continue };
        let lines: Vec<&str> = text.lines().collect();
        let code = code_only(text);
        for (at, line) in code.lines().enumerate().filter(|(_, line)| has_word(line, "unsafe")) {
            if !file.path.starts_with(&rules.code.unsafe_home) {
                let home = &rules.code.unsafe_home;
                found.push(file.violation_at(at + 1, format!("unsafe code belongs in {home}")));
            } else if needs_argument(line) && !is_argued(&lines, at) {
                found.push(
                    file.violation_at(at + 1, "unsafe without a `// SAFETY:` comment above it"),
                );
            }
        }
    }
    found
}

/// An `unsafe fn` states its terms in its documentation; a block or an impl argues that it keeps
/// them.
fn needs_argument(line: &str) -> bool {
    !has_word(line, "fn") || line.contains("unsafe {")
}

fn is_argued(lines: &[&str], at: usize) -> bool {
    for line in lines[..at].iter().rev().take(REACH).map(|line| line.trim()) {
        if line.starts_with("// SAFETY:") {
            return true;
        }
        let is_comment = line.starts_with("//") || line.starts_with("#[");
        let ends_statement = line.is_empty() || line.ends_with([';', '{', '}']);
        if !is_comment && ends_statement {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::check_unsafe;
    use crate::tree::samples::{list_complaints, sample_file};

    const HOME: &str = "crates/jail/src/sys/";
    const FILE: &str = "crates/jail/src/sys/raw.rs";

    #[test]
    fn the_keyword_elsewhere_is_found() {
        let found = list_complaints(
            check_unsafe,
            &[sample_file("crates/cli/src/main.rs", "\nlet x = unsafe { y };")],
        );
        let says = format!("crates/cli/src/main.rs:2: unsafe code belongs in {HOME}");
        assert_eq!(found, [says]);
    }

    #[test]
    fn a_name_that_begins_like_the_folder_is_not_in_it() {
        for path in ["crates/jail/src/sys.rs", "crates/jail/src/system.rs", "crates/sys/raw.rs"] {
            let files = [sample_file(path, "// SAFETY: fine\nlet x = unsafe { y };")];
            assert_eq!(list_complaints(check_unsafe, &files).len(), 1, "{path}");
        }
    }

    #[test]
    fn talk_about_it_is_not_code() {
        let text = "// unsafe\n#![deny(unsafe_code)]\nlet x = \"unsafe\";";
        assert!(
            list_complaints(check_unsafe, &[sample_file("crates/cli/src/main.rs", text)])
                .is_empty()
        );
    }

    #[test]
    fn at_home_every_block_needs_an_argument() {
        let argued = "// SAFETY: x lives\n// long enough\nlet a =\n    unsafe { f(x) };\n";
        assert!(list_complaints(check_unsafe, &[sample_file(FILE, argued)]).is_empty());
        let bare = "// SAFETY: fine\nlet a = unsafe { f(x) };\nlet b = unsafe { f(y) };\n";
        let found = list_complaints(check_unsafe, &[sample_file(FILE, bare)]);
        assert_eq!(found, [format!("{FILE}:3: unsafe without a `// SAFETY:` comment above it")]);
        assert_eq!(
            list_complaints(check_unsafe, &[sample_file(FILE, "unsafe impl Send for X {}")]).len(),
            1
        );
    }

    #[test]
    fn a_declaration_states_its_terms_elsewhere() {
        assert!(
            list_complaints(check_unsafe, &[sample_file(FILE, "pub unsafe fn f() {}")]).is_empty()
        );
        assert_eq!(
            list_complaints(check_unsafe, &[sample_file(FILE, "fn f() { unsafe { g() } }")]).len(),
            1
        );
    }
}
