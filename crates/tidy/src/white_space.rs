//! Every text ends with a newline, and no line ends with white space.

use crate::{
    rules::TidyRules,
    tree::{TreeFile, Violation},
};

/// Finds white space that shows only in a diff.
pub(crate) fn check_white_space(rules: &TidyRules, files: &[TreeFile]) -> Vec<Violation> {
    let ours = files.iter().filter(|file| !rules.text.is_verbatim(&file.path));
    ours.flat_map(check_file).collect()
}

fn check_file(file: &TreeFile) -> Vec<Violation> {
    let Some(text) = file.text.as_deref() else { return Vec::new() };
    let mut found = Vec::new();
    let mut last = 0;
    for (at, line) in text.split('\n').enumerate() {
        last = at + 1;
        if line.ends_with([' ', '\t', '\r']) {
            found.push(file.violation_at(last, "white space at the end of the line"));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        found.push(file.violation_at(last, "no newline at the end of the file"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::check_white_space;
    use crate::tree::{
        TreeFile,
        samples::{list_complaints, sample_file},
    };

    #[test]
    fn clean_text_passes() {
        assert!(
            list_complaints(
                check_white_space,
                &[sample_file("a.md", "a\nb\n"), sample_file("empty", "")]
            )
            .is_empty()
        );
    }

    #[test]
    fn white_space_at_the_end_of_a_line_is_found() {
        let found = list_complaints(check_white_space, &[sample_file("a.md", "a\nb \nc\t\nd\r\n")]);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0], "a.md:2: white space at the end of the line");
    }

    #[test]
    fn a_missing_last_newline_is_found() {
        let found = list_complaints(check_white_space, &[sample_file("a.md", "a\nb")]);
        assert_eq!(found, ["a.md:2: no newline at the end of the file"]);
    }

    #[test]
    fn texts_of_others_and_binaries_are_left_alone() {
        let binary = TreeFile { path: "a.png".into(), text: None };
        assert!(
            list_complaints(
                check_white_space,
                &[sample_file("fuzz/seeds/a/1", "a "), sample_file("x.snap", "a "), binary]
            )
            .is_empty()
        );
    }
}
