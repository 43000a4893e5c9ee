//! The ways an interpreter is started, and what can be seen of a run.

use std::{future::Future, sync::Arc};

use cloche_executor::{Executor, ExecutorConfig, PoolSettings, RunIo};
use cloche_model::{Language, RunEnding, RunOutcome, RunSpec};
use cloche_test_support::eventually_blocking;
use tokio::task::block_in_place;

use crate::{case::Case, image::TestImage};

/// Runs a test to its end, with more stack than a test's thread has.
pub(crate) fn block_on(test: impl Future<Output = ()> + Send + 'static) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().thread_stack_size(32 << 20).build().unwrap();
    runtime.block_on(runtime.spawn(test)).unwrap();
}

/// How an interpreter comes to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Started when the job is there: what the others are held to.
    Cold,
    /// Python, forked from a template.
    Template,
    /// Python, started before the job.
    Single,
    /// Node or Bash, started before the job.
    Started,
}

/// An executor that starts interpreters in one way only.
pub(crate) struct Ways {
    pub(crate) way: Way,
    pub(crate) executor: Executor,
    preload: Vec<String>,
    /// The root of its cells; that of this host without one.
    image: Option<Arc<TestImage>>,
}

/// What a run left behind; addresses are not compared.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) ending: RunEnding,
}

impl Ways {
    pub(crate) async fn start(way: Way) -> Self {
        Self::start_with(way, &[]).await
    }

    /// Also imports modules ahead, where there is a template.
    pub(crate) async fn start_with(way: Way, preload: &[&str]) -> Self {
        Self::start_on(None, way, preload).await
    }

    /// The same on an image.
    pub(crate) async fn start_on(
        image: Option<&Arc<TestImage>>,
        way: Way,
        preload: &[&str],
    ) -> Self {
        let mut config = ExecutorConfig::with_program(env!("CARGO_BIN_EXE_cloche"));
        config.pool = (way != Way::Cold).then(PoolSettings::default);
        config.unpacked_layers = image.map(|image| image.layers.cache_dir().to_owned());
        config.layers = image.map(|image| image.layers.clone());
        let executor = Executor::start(config).await.unwrap();
        let preload = preload.iter().map(|&name| name.to_owned()).collect();
        Self { way, executor, preload, image: image.cloned() }
    }

    /// Runs a case, and demands that its interpreter came the way it should.
    pub(crate) async fn run(&self, case: &Case) -> Seen {
        Seen::from(self.run_as(case.spec(), case.starts_anew).await)
    }

    /// Runs a program, and demands that its interpreter came the way it should, or started anew.
    pub(crate) async fn run_as(&self, mut spec: RunSpec, anew: bool) -> RunOutcome {
        spec.sandbox.template = self.way == Way::Template;
        spec.sandbox.preload.clone_from(&self.preload);
        if let Some(image) = &self.image {
            image.apply_to(&mut spec.sandbox);
        }
        self.executor.prewarm_pool(spec.language, &spec.limits, &spec.sandbox);
        self.wait_until_warm();
        // A parked cell may be without a shell.
        let is_shell = spec.language == Language::Bash;
        let before = self.executor.read_metrics();
        let outcome = self.executor.run(spec, RunIo::default()).await.unwrap();
        let after = self.executor.read_metrics();
        let templates = before.buckets.iter().map(|shelf| shelf.templates).sum::<usize>();
        if is_shell && anew {
            assert_eq!(
                after.pool_hits + after.cold_starts,
                before.pool_hits + before.cold_starts + 1
            );
        } else if self.way == Way::Cold || anew {
            assert_eq!(after.cold_starts, before.cold_starts + 1);
        } else {
            assert_eq!(after.pool_hits, before.pool_hits + 1, "no interpreter was waiting");
            assert_eq!(templates > 0, self.way == Way::Template, "templates: {templates}");
        }
        outcome
    }

    fn wait_until_warm(&self) {
        let what = format!("an interpreter is parked ({:?})", self.way);
        // Not `eventually`: its future is not `Send`, and these tests are spawned.
        block_in_place(|| eventually_blocking(what, || self.executor.is_warm()));
    }

    pub(crate) async fn stop(self) {
        self.executor.stop().await;
    }
}

impl From<RunOutcome> for Seen {
    fn from(outcome: RunOutcome) -> Self {
        Self {
            stdout: without_addresses(&outcome.stdout.bytes),
            stderr: without_addresses(&outcome.stderr.bytes),
            ending: outcome.ending,
        }
    }
}

impl Seen {
    /// In words, what is not as in the other.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let streams =
            [("stdout", &self.stdout, &other.stdout), ("stderr", &self.stderr, &other.stderr)];
        let mut said = Vec::new();
        if self.ending != other.ending {
            said.push(format!("ended {:?} cold, {:?} warm", self.ending, other.ending));
        }
        for (name, cold, warm) in streams.into_iter().filter(|(_, cold, warm)| cold != warm) {
            said.push(format!("{name}:\n{}", diff(cold, warm)));
        }
        (!said.is_empty()).then(|| said.join("; "))
    }
}

/// The first lines that are not the same, with one before.
fn diff(cold: &[u8], warm: &[u8]) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (cold, warm) = (text(cold), text(warm));
    let (cold, warm): (Vec<&str>, Vec<&str>) = (cold.lines().collect(), warm.lines().collect());
    let same = cold.iter().zip(&warm).take_while(|(a, b)| a == b).count();
    let from = same.saturating_sub(1);
    let show = |mark: char, lines: &[&str]| {
        let lines = lines.iter().skip(from).take(12);
        lines
            .map(|line| format!("  {mark} {}\n", line.get(..400).unwrap_or(line)))
            .collect::<String>()
    };
    show('-', &cold) + &show('+', &warm)
}

/// The same text with every hexadecimal number replaced.
pub(crate) fn without_addresses(text: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(text) else { return text.to_vec() };
    let mut parts = text.split("0x");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str("0x?");
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
    }
    out.into_bytes()
}
