//! Runs in: test. Groups share no template, and a group without one shares nothing.

use std::collections::BTreeSet;

use cloche_executor::{Executor, PoolSettings, RunIo};
use cloche_model::{ByteSize, Language, RunLimits, RunSpec, SandboxShape};
use cloche_test_support::{eventually, own_main::OwnTest, own_tests};

use crate::host::start_executor;

pub(crate) const TESTS: &[OwnTest] =
    own_tests![two_groups_have_a_template_each, a_group_beyond_the_budget_shares_no_template];

/// An executor whose pool is warm for these groups.
async fn start_warm(memory: ByteSize, groups: &[&str]) -> Option<Executor> {
    let pool = PoolSettings { floor: 1, memory, ..PoolSettings::default() };
    let executor = start_executor(Some(pool)).await?;
    for group in groups {
        let shape = SandboxShape::default().in_group(*group);
        executor.prewarm_pool(Language::Python, &RunLimits::default(), &shape);
    }
    eventually("the pool is filled", async || executor.is_warm()).await;
    Some(executor)
}

/// The seed of string hashes, which a template gives to all that it forks.
async fn seed(executor: &Executor, group: &str) -> String {
    let mut spec = RunSpec::new(Language::Python, "print(hash('cloche'))");
    spec.sandbox = SandboxShape::default().in_group(group);
    executor.run(spec, RunIo::default()).await.unwrap().stdout.to_text_lossy()
}

async fn two_groups_have_a_template_each() {
    let Some(executor) = start_warm(ByteSize::gib(2), &["one", "other"]).await else { return };
    let one = [seed(&executor, "one").await, seed(&executor, "one").await];
    let other = [seed(&executor, "other").await, seed(&executor, "other").await];
    assert_eq!(one[0], one[1], "cells of one group come from one template");
    assert_eq!(other[0], other[1]);
    assert_ne!(one[0], other[0], "cells of two groups come from one template");
    executor.stop().await;
}

async fn a_group_beyond_the_budget_shares_no_template() {
    // Less than any template takes.
    let Some(executor) = start_warm(ByteSize::mib(8), &[]).await else { return };
    let mut seeds = BTreeSet::new();
    for _ in 0..3 {
        seeds.insert(seed(&executor, "one").await);
    }
    assert_eq!(seeds.len(), 3, "{seeds:?}");
    assert!(executor.read_metrics().buckets.iter().all(|bucket| bucket.templates == 0));
    executor.stop().await;
}
