//! For tests with a main of their own: answering what runners of tests ask.

/// Whether the test is to be run; lists it where that is what was asked for.
pub(crate) fn is_to_run(name: &str, arguments: &[&str]) -> bool {
    if arguments.contains(&"--list") {
        if !arguments.contains(&"--ignored") {
            println!("{name}: test");
        }
        return false;
    }
    arguments.iter().all(|word| word.starts_with("--") || name.contains(word))
}
