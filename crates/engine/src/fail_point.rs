//! Places where a test can have the server die, in debug builds only.
//!
//! `CLOCHE_FAIL_POINT=NAME@COUNT` ends the process the COUNTth time that it comes by NAME, without
//! a destructor or a flush, as `kill -9` does. A release build does not read the variable.

/// Comes by a place.
#[cfg(not(debug_assertions))]
pub(crate) fn reach(_: &str) {}

/// Comes by a place.
#[cfg(debug_assertions)]
pub(crate) fn reach(name: &str) {
    use std::sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    };
    static WANTED: LazyLock<Option<(String, u32)>> = LazyLock::new(|| {
        let text = std::env::var("CLOCHE_FAIL_POINT").ok()?;
        let (name, count) = text.split_once('@')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    static SEEN: AtomicU32 = AtomicU32::new(0);
    let Some((wanted, count)) = WANTED.as_ref().filter(|(wanted, _)| wanted == name) else {
        return;
    };
    if SEEN.fetch_add(1, Ordering::SeqCst) + 1 == *count {
        tracing::error!(%wanted, "a test asked for the end of the process here");
        std::process::abort();
    }
}
