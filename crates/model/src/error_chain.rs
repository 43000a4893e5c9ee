//! An error with all its causes on one line, for logs, terminals and records.

use std::error::Error;

/// The error and each of its causes, joined with `: `.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Some errors have their cause in their own text, too.
        if !line.ends_with(&text) {
            line = format!("{line}: {text}");
        }
        cause = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot start")]
    struct Outer(#[source] std::io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("cannot store: {0}")]
    struct Repeating(#[source] Outer);

    #[test]
    fn a_cause_that_an_error_repeats_is_shown_once() {
        let error = Repeating(Outer(std::io::Error::other("no memory")));
        assert_eq!(error_chain(&error), "cannot store: cannot start: no memory");
    }

    #[test]
    fn every_cause_is_named_once() {
        let error = Outer(std::io::Error::other("no memory"));
        assert_eq!(error_chain(&error), "cannot start: no memory");
    }
}
