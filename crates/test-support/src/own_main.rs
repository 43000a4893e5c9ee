//! Runs in: test. A test binary with its own `main`, because it is its own spawner.
//!
//! A spawner must be single-threaded from its first line, and the main function of the standard
//! test harness is not. So `main` looks for `__spawner` first, and then answers what runners of
//! tests ask: `--list`, `--exact` and a part of a name.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
};

/// One test: its name as the runner knows it, and its body.
#[derive(Clone, Copy)]
pub struct OwnTest {
    /// The path of the function in its crate.
    pub path: &'static str,
    /// Runs it; a panic is a failure.
    pub run: fn(),
}

impl OwnTest {
    /// The name without the crate, as the standard harness prints it.
    fn name(&self) -> &'static str {
        self.path.split_once("::").map_or(self.path, |(_, name)| name)
    }
}

/// The tests of a module, each an `async fn` without arguments.
///
/// A function that is left out is reported by the compiler as never used.
#[macro_export]
macro_rules! own_tests {
    ($($name:ident),* $(,)?) => {
        &[$($crate::own_main::OwnTest {
            path: concat!(module_path!(), "::", stringify!($name)),
            run: || $crate::own_main::block_on($name()),
        }),*]
    };
}

/// Runs one test to its end.
pub fn block_on(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(test);
}

/// Lists or runs the tests, as these arguments ask.
pub fn run_tests(tests: &[OwnTest], arguments: &[&str]) -> ExitCode {
    let asked = RunnerArguments::parse(arguments);
    let chosen: Vec<&OwnTest> = tests.iter().filter(|test| asked.selects(test.name())).collect();
    if asked.list {
        // No test is ignored, so the list of those is empty.
        let listed = chosen.iter().filter(|_| !asked.ignored);
        listed.for_each(|test| println!("{}: test", test.name()));
        return ExitCode::SUCCESS;
    }
    let mut failed = Vec::new();
    for test in chosen {
        // The panic has been printed by then; the next test shares nothing with this one.
        let is_ok = catch_unwind(AssertUnwindSafe(test.run)).is_ok();
        println!("test {} ... {}", test.name(), if is_ok { "ok" } else { "FAILED" });
        failed.extend((!is_ok).then_some(test.name()));
    }
    if !failed.is_empty() {
        println!("failed: {failed:#?}");
    }
    ExitCode::from(u8::from(!failed.is_empty()))
}

/// What a runner of tests asks for.
#[derive(Debug, Default)]
struct RunnerArguments<'a> {
    list: bool,
    ignored: bool,
    exact: bool,
    /// Parts of names, or whole ones where `exact`; all tests where there are none.
    names: Vec<&'a str>,
    /// Parts of names of tests that are left out.
    left_out: Vec<&'a str>,
}

impl<'a> RunnerArguments<'a> {
    fn parse(arguments: &[&'a str]) -> Self {
        let mut asked = Self::default();
        let mut words = arguments.iter().copied();
        while let Some(word) = words.next() {
            match word {
                "--list" => asked.list = true,
                "--ignored" => asked.ignored = true,
                "--exact" => asked.exact = true,
                "--skip" => asked.left_out.extend(words.next()),
                "--format" | "--test-threads" | "--color" => drop(words.next()),
                flag if flag.starts_with('-') => {}
                name => asked.names.push(name),
            }
        }
        asked
    }

    fn selects(&self, name: &str) -> bool {
        let fits = |part: &&str| if self.exact { name == *part } else { name.contains(*part) };
        (self.names.is_empty() || self.names.iter().any(fits))
            && !self.left_out.iter().any(fits)
            && (self.list || !self.ignored)
    }
}

#[cfg(test)]
mod tests {
    use super::RunnerArguments;

    fn selects(arguments: &[&str], name: &str) -> bool {
        RunnerArguments::parse(arguments).selects(name)
    }

    #[test]
    fn a_test_is_selected_by_a_part_of_its_name_or_exactly() {
        assert!(selects(&["--nocapture"], "homes::one"));
        assert!(selects(&["homes"], "homes::one"));
        assert!(!selects(&["homes", "--exact"], "homes::one"));
        assert!(selects(&["homes::one", "--exact", "--nocapture"], "homes::one"));
        assert!(!selects(&["--skip", "one"], "homes::one"));
    }

    #[test]
    fn the_value_of_an_option_is_not_a_name() {
        assert!(selects(&["--format", "terse", "--test-threads", "1"], "homes::one"));
    }

    #[test]
    fn no_test_is_ignored() {
        assert!(!selects(&["--ignored"], "homes::one"));
    }
}
