//! Documents: links lead somewhere, and decisions are numbered.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    rules::TidyRules,
    tree::{TreeFile, Violation},
};

const DECISIONS: &str = "docs/decisions/";

/// Finds relative links to nothing and decisions with the wrong name.
pub(crate) fn check_docs(_rules: &TidyRules, files: &[TreeFile]) -> Vec<Violation> {
    let places = known_paths(files);
    let mut found = check_decisions(files);
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        for (line, target) in find_links(file.text.as_deref().unwrap_or_default()) {
            if !link_resolves(&file.path, &target, &places) {
                found.push(file.violation_at(line, format!("the link to {target} leads nowhere")));
            }
        }
    }
    found
}

/// Every file and every directory above one.
fn known_paths(files: &[TreeFile]) -> BTreeSet<String> {
    let mut places = BTreeSet::from([String::new()]);
    for file in files {
        let cuts = file.path.match_indices('/').map(|(at, _)| at).chain([file.path.len()]);
        places.extend(cuts.map(|at| file.path[..at].to_owned()));
    }
    places
}

/// Link targets with their lines: `[text](target)` and `[name]: target`, outside of code.
fn find_links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        let prose: String = line.split('`').step_by(2).collect();
        let inline = prose.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        let named = prose.starts_with('[').then(|| prose.split_once("]: ")).flatten();
        let targets = inline.chain(named.map(|(_, target)| target.trim()));
        found.extend(targets.map(|target| (at + 1, target.to_owned())));
    }
    found
}

fn link_resolves(from: &str, target: &str, places: &BTreeSet<String>) -> bool {
    let target = target.trim_matches(['<', '>']);
    let path = target.split(['#', '?']).next().unwrap_or_default();
    let elsewhere = target.contains("://") || target.starts_with("mailto:");
    if elsewhere || path.is_empty() {
        return true;
    }
    let mut parts: Vec<&str> = match path.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => from.split('/').collect(),
    };
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => return false,
            ".." => {}
            _ => parts.push(part),
        }
    }
    places.contains(&parts.join("/"))
}

fn check_decisions(files: &[TreeFile]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut numbers = BTreeMap::new();
    for file in files {
        let Some(name) = file.path.strip_prefix(DECISIONS) else { continue };
        let Some(number) = decision_number(name) else {
            found.push(file.violation_at(1, "a decision is named NNNN-title.md, in lower case"));
            continue;
        };
        if let Some(first) = numbers.insert(number, name) {
            found.push(file.violation_at(1, format!("has the same number as {first}")));
        }
    }
    found
}

fn decision_number(name: &str) -> Option<&str> {
    let (number, title) = name.strip_suffix(".md")?.split_once('-')?;
    let numbered = number.len() == 4 && number.chars().all(|c| c.is_ascii_digit());
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (numbered && !title.is_empty() && title.chars().all(plain)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::check_docs;
    use crate::tree::samples::{list_complaints, sample_file};

    fn page(text: &str) -> Vec<String> {
        let others =
            [sample_file("docs/SECURITY.md", ""), sample_file("crates/jail/src/lib.rs", "")];
        let mut files = Vec::from(others);
        files.push(sample_file("docs/page.md", text));
        list_complaints(check_docs, &files)
    }

    #[test]
    fn links_that_resolve_are_fine() {
        let text = "[a](SECURITY.md#x) [b](../crates/jail/) [c](https://example.org) [d](#here)\n\
            [e](./SECURITY.md \"title\") [f](/docs/SECURITY.md)\n[g]: ../crates\n";
        assert_eq!(page(text), Vec::<String>::new());
    }

    #[test]
    fn links_to_nothing_are_found() {
        assert_eq!(page("\n[a](GONE.md)"), ["docs/page.md:2: the link to GONE.md leads nowhere"]);
        assert_eq!(page("[a](../../outside.md) and [b](../crates/gone/)").len(), 2);
        assert_eq!(page("[a]: gone.md").len(), 1);
    }

    #[test]
    fn code_has_no_links() {
        assert!(page("```\n[a](gone.md)\n```\n`[b](gone.md)`\n").is_empty());
        assert_eq!(page("```\n```\n[a](gone.md)\n").len(), 1);
    }

    #[test]
    fn decisions_are_numbered_once() {
        let path = |name: &str| sample_file(&format!("docs/decisions/{name}"), "");
        assert!(list_complaints(check_docs, &[path("0001-one-binary.md")]).is_empty());
        for name in ["1-x.md", "0001.md", "0001-Title.md", "notes.txt", "README.md"] {
            assert_eq!(list_complaints(check_docs, &[path(name)]).len(), 1, "{name}");
        }
        assert_eq!(list_complaints(check_docs, &[path("0001-a.md"), path("0001-b.md")]).len(), 1);
    }
}
