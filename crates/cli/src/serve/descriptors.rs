//! Runs in: server (no capabilities), broker (no capabilities).
//!
//! The limit of open files and sockets of the server, and of its broker. The spawner starts before
//! the limit is raised, so no cell inherits it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one. Returns the limit in effect.
pub(crate) fn raise_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "could not raise the limit of open files");
        }
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The number of connections that leaves a quarter of all descriptors, and at least 64, to runs,
/// the database and webhooks.
pub(super) fn connections_within(limit: u64, wanted: usize) -> usize {
    let most = (limit - limit / 4).min(limit.saturating_sub(64)).max(1);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if wanted > most {
        tracing::warn!(wanted, most, "the limit of open files allows fewer connections");
    }
    wanted.min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_runs() {
        assert_eq!(connections_within(1024, 10_000), 768);
        assert_eq!(connections_within(1_048_576, 10_000), 10_000);
        assert_eq!(connections_within(100, 10_000), 36);
        assert_eq!(connections_within(10, 10_000), 1);
    }
}
