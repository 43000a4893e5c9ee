//! An error with all its causes on one line, for logs, terminals and records.

use std::error::Error;

/// The error and each of its causes, joined with `: `.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line = format!("{line}: {error}");
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

    #[test]
    fn every_cause_is_named_once() {
        let error = Outer(std::io::Error::other("no memory"));
        assert_eq!(error_chain(&error), "cannot start: no memory");
    }
}
