//! A type name stands for one type in the whole workspace, so that a search finds that type.

use std::collections::BTreeMap;

use crate::{
    lexer::code_only,
    rules::TidyRules,
    shape::production_lines,
    tree::{TreeFile, Violation},
};

/// Words that declare a type when a name follows.
const DECLARATIONS: [&str; 4] = ["struct", "enum", "trait", "union"];

/// Finds names of types that are declared more than once in production code and are not listed.
pub(crate) fn check_type_names(rules: &TidyRules, files: &[TreeFile]) -> Vec<Violation> {
    let mut first = BTreeMap::new();
    let mut found = Vec::new();
    for file in files.iter().filter(|file| is_production(file)) {
        for (line, name) in declared_types(file.rust_text().unwrap_or_default()) {
            if rules.code.shared_type_names.contains_key(&name) {
                continue;
            }
            let place = format!("{}:{line}", file.path);
            if let Some(other) = first.get(&name) {
                let message = format!("the type name {name} is taken by {other}; use another one");
                found.push(file.violation_at(line, message));
            } else {
                first.insert(name, place);
            }
        }
    }
    found
}

/// Sources of our crates that are not tests.
fn is_production(file: &TreeFile) -> bool {
    let mut parts = file.path.split('/');
    parts.next() == Some("crates") && parts.nth(1) == Some("src") && !file.is_test()
}

/// Names of types with the lines of their declarations, tests at the end of the file left out.
fn declared_types(text: &str) -> Vec<(usize, String)> {
    let code = code_only(text);
    let lines = code.lines().take(production_lines(text)).enumerate();
    let declared = lines.flat_map(|(at, line)| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let pairs = words.windows(2).filter(|pair| DECLARATIONS.contains(&pair[0]));
        let names = pairs.filter_map(|pair| type_name(pair[1]));
        names.map(|name| (at + 1, name.to_owned())).collect::<Vec<_>>()
    });
    declared.collect()
}

/// The name at the start of a word, such as `Plan` in `Plan<T>(`.
fn type_name(word: &str) -> Option<&str> {
    let end = word.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(word.len());
    word[..end].starts_with(char::is_uppercase).then_some(&word[..end])
}

#[cfg(test)]
mod tests {
    use super::{check_type_names, declared_types};
    use crate::{
        rules::TidyRules,
        tree::{
            TreeFile, Violation,
            samples::{list_complaints, sample_file},
        },
    };

    fn two_files(first: &str, second: &str) -> [TreeFile; 2] {
        [sample_file("crates/a/src/lib.rs", first), sample_file("crates/b/src/lib.rs", second)]
    }

    #[test]
    fn a_name_of_one_type_passes() {
        let files = two_files("struct Plan;\nfn f(plan: Plan) {}\n", "enum Step {}\n");
        assert!(list_complaints(check_type_names, &files).is_empty());
    }

    #[test]
    fn a_name_of_two_types_is_found() {
        let files = two_files("pub struct Plan<T>(T);\n", "\npub(crate) enum Plan {}\n");
        let says = "the type name Plan is taken by crates/a/src/lib.rs:1; use another one";
        let found = list_complaints(check_type_names, &files);
        assert_eq!(found, [format!("crates/b/src/lib.rs:2: {says}")]);
        for other in ["trait Plan {}", "union Plan { a: u8 }", "pub unsafe trait Plan: Sized {}"] {
            let found = list_complaints(check_type_names, &two_files("struct Plan;", other));
            assert_eq!(found.len(), 1, "{other}");
        }
        let same_file =
            [sample_file("crates/a/src/lib.rs", "struct Plan;\nmod b { struct Plan; }")];
        assert_eq!(list_complaints(check_type_names, &same_file).len(), 1);
    }

    #[test]
    fn tests_examples_comments_and_strings_declare_nothing() {
        let test = "#[cfg(test)]\nmod tests {\n    struct Plan;\n}\n";
        for other in [test, "// struct Plan;\n", "const X: &str = \"struct Plan\";\n"] {
            let files = two_files("struct Plan;", other);
            assert!(list_complaints(check_type_names, &files).is_empty(), "{other}");
        }
        for path in ["crates/b/tests/all.rs", "crates/b/src/x/tests.rs", "crates/b/examples/x.rs"] {
            let files = [
                sample_file("crates/a/src/lib.rs", "struct Plan;"),
                sample_file(path, "struct Plan;"),
            ];
            assert!(list_complaints(check_type_names, &files).is_empty(), "{path}");
        }
    }

    #[test]
    fn a_listed_name_may_be_shared() {
        let mut rules = TidyRules::load().unwrap();
        let files = two_files("struct Plan;", "struct Plan;");
        rules.code.shared_type_names.insert("Plan".into(), "two kinds of plan".into());
        assert_eq!(check_type_names(&rules, &files), Vec::<Violation>::new());
    }

    #[test]
    fn every_listed_name_has_a_reason() {
        let rules = TidyRules::load().unwrap();
        assert!(rules.code.shared_type_names.values().all(|reason| reason.trim().len() > 10));
    }

    #[test]
    fn macro_variables_and_method_names_are_not_types() {
        assert!(declared_types("enum $name {}\nlet x = a.union(b);\n").is_empty());
        assert_eq!(declared_types("\npub struct Plan<'a> {}"), [(2, "Plan".to_owned())]);
    }
}
