//! Runs in: test. Waiting for something that another process or task does: polls, with a deadline.

use std::{
    fmt::Display,
    thread,
    time::{Duration, Instant},
};

/// Longer than anything takes on a machine with much else to do.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// What one look gave: a value if it is so by now, otherwise how it is instead.
pub trait Observation {
    /// What there is once it is so.
    type Value;
    /// The value, or a description of what there is instead.
    fn into_result(self) -> Result<Self::Value, String>;
}

impl Observation for bool {
    type Value = ();
    fn into_result(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "it is not".to_owned())
    }
}

impl<T> Observation for Option<T> {
    type Value = T;
    fn into_result(self) -> Result<T, String> {
        self.ok_or_else(|| "there is none".to_owned())
    }
}

impl<T, E: Display> Observation for Result<T, E> {
    type Value = T;
    fn into_result(self) -> Result<T, String> {
        self.map_err(|error| error.to_string())
    }
}

/// Looks until it is so, and returns what was seen then. Fails with `what` after [`PATIENCE`].
///
/// `what` says what should be so: "the server is ready".
pub async fn eventually<O: Observation>(
    what: impl Display,
    mut look: impl AsyncFnMut() -> O,
) -> O::Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match look().await.into_result() {
            Ok(value) => return value,
            Err(seen) => fail_if_late(deadline, &what, &seen),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// [`eventually`] for tests without a runtime.
pub fn eventually_blocking<O: Observation>(
    what: impl Display,
    mut look: impl FnMut() -> O,
) -> O::Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match look().into_result() {
            Ok(value) => return value,
            Err(seen) => fail_if_late(deadline, &what, &seen),
        }
        thread::sleep(PAUSE);
    }
}

fn fail_if_late(deadline: Instant, what: &impl Display, seen: &str) {
    assert!(Instant::now() < deadline, "still waiting after {PATIENCE:?} that {what}: {seen}");
}

#[cfg(test)]
mod tests {
    use super::{eventually, eventually_blocking};

    #[tokio::test]
    async fn the_value_of_the_first_success_is_returned() {
        let mut looks = 0;
        let seen = eventually("there were three looks", async || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(seen.await, 3);
        eventually_blocking("nothing is missing", || Ok::<_, String>(()));
        eventually("true is true", async || true).await;
    }
}
