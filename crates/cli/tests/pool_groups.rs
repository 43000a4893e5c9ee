//! Runs in: test. Groups share no template, and a group without one shares nothing.
#![allow(clippy::unwrap_used, reason = "a test may fail at any line")]

use std::collections::BTreeSet;

use cloche_executor::{Executor, ExecutorConfig, PoolSettings, RunIo};
use cloche_model::{ByteSize, Language, RunLimits, RunSpec, SandboxShape};

#[path = "support/cloche.rs"]
mod support;

use support::{binary, skip};

/// How long a pool may take to be filled, in hundredths of a second.
const PATIENCE: usize = 6000;

/// An executor whose pool is warm for these groups.
async fn warm(memory: ByteSize, groups: &[&str]) -> Option<Executor> {
    let pool = Some(PoolSettings { floor: 1, memory, ..PoolSettings::default() });
    let executor =
        match Executor::start(ExecutorConfig { pool, ..ExecutorConfig::with_program(binary()) })
            .await
        {
            Ok(executor) => executor,
            Err(error) => {
                skip(&error.to_string());
                return None;
            }
        };
    for group in groups {
        let shape = SandboxShape::default().in_group(*group);
        executor.prewarm_pool(Language::Python, &RunLimits::default(), &shape);
    }
    for _ in 0..PATIENCE {
        if executor.is_warm() {
            return Some(executor);
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the pool was not filled");
}

/// The seed of string hashes, which a template gives to all that it forks.
async fn seed(executor: &Executor, group: &str) -> String {
    let mut spec = RunSpec::new(Language::Python, "print(hash('cloche'))");
    spec.sandbox = SandboxShape::default().in_group(group);
    executor.run(spec, RunIo::default()).await.unwrap().stdout.to_text_lossy()
}

#[tokio::test]
async fn two_groups_have_a_template_each() {
    let Some(executor) = warm(ByteSize::gib(2), &["one", "other"]).await else { return };
    let one = [seed(&executor, "one").await, seed(&executor, "one").await];
    let other = [seed(&executor, "other").await, seed(&executor, "other").await];
    assert_eq!(one[0], one[1], "cells of one group come from one template");
    assert_eq!(other[0], other[1]);
    assert_ne!(one[0], other[0], "cells of two groups come from one template");
    executor.stop().await;
}

#[tokio::test]
async fn a_group_beyond_the_budget_shares_no_template() {
    // Less than any template takes.
    let Some(executor) = warm(ByteSize::mib(8), &[]).await else { return };
    let mut seeds = BTreeSet::new();
    for _ in 0..3 {
        seeds.insert(seed(&executor, "one").await);
    }
    assert_eq!(seeds.len(), 3, "{seeds:?}");
    assert!(executor.read_metrics().buckets.iter().all(|shelf| shelf.templates == 0));
    executor.stop().await;
}
