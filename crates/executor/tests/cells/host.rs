//! Runs in: test. An executor whose spawner is this very binary.

use std::env;

use cloche_executor::{Executor, ExecutorConfig, PoolSettings};
use cloche_test_support::skip;

/// The configuration of an executor whose spawner is this binary.
pub(crate) fn own_config(pool: Option<PoolSettings>) -> ExecutorConfig {
    ExecutorConfig { pool, ..ExecutorConfig::with_program(env::current_exe().unwrap()) }
}

/// An executor with this pool; nothing, and a skipped test, where no cell can be built.
pub(crate) async fn start_executor(pool: Option<PoolSettings>) -> Option<Executor> {
    start_with(own_config(pool)).await
}

/// The same with any configuration.
pub(crate) async fn start_with(config: ExecutorConfig) -> Option<Executor> {
    match Executor::start(config).await {
        Ok(executor) => Some(executor),
        Err(error) => {
            skip(&error.to_string());
            None
        }
    }
}

/// Whether some template runs and has a cell parked.
pub(crate) fn has_parked_fork(executor: &Executor) -> bool {
    let buckets = executor.read_metrics().buckets;
    buckets.iter().any(|bucket| bucket.parked > 0 && bucket.templates > 0)
}
