//! Runs in: test. Random programs in a home and in a plain directory leave the same files.

use std::{
    collections::BTreeSet,
    io::Write,
    os::unix::fs::chown,
    path::Path,
    process::{Command, Stdio},
};

use cloche_executor::PoolSettings;
use cloche_model::{ByteSize, Language, RunEnding, RunLimits, RunSpec, SandboxShape};
use cloche_test_support::{own_main::OwnTest, own_tests};
use proptest::{collection::vec, prelude::*};
use serde::Serialize;
use tokio::{runtime::Handle, task::block_in_place};

use crate::homes_host::{HomesHost, Thread};

pub(crate) const TESTS: &[OwnTest] =
    own_tests![a_home_behaves_like_a_plain_directory_over_many_runs];

#[derive(Clone, Debug, Serialize)]
struct Step {
    act: &'static str,
    on: u16,
    into: u16,
    name: &'static str,
    seed: u16,
    at: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Call {
    steps: Vec<Step>,
    dies: bool,
    #[serde(skip)]
    squash: bool,
}

const NAMES: [&str; 7] = ["a", "b", "c d", "\u{e9}", ".wh.a", ".wh..wh..opq", "new\nline"];
const ACTS: [&str; 15] = [
    "write",
    "write",
    "directory",
    "directory",
    "append",
    "append",
    "link",
    "link",
    "link",
    "sparse",
    "remove",
    "rename",
    "rename",
    "symlink",
    "mode",
];

fn call() -> impl Strategy<Value = Call> {
    let step = (0..=ACTS.len(), any::<u16>(), any::<u16>(), 0..NAMES.len(), any::<u16>());
    let steps = vec(step, 1..10).prop_map(|steps| {
        let number = |(at, (act, on, into, name, seed)): (usize, _)| {
            let act = ACTS.get::<usize>(act).copied().unwrap_or("attribute");
            let name: usize = name;
            Step { act, on, into, name: NAMES[name], seed, at: 1_000_000_000_000 + at as u64 * 7 }
        };
        steps.into_iter().enumerate().map(number).collect()
    });
    (steps, prop::bool::weighted(0.15), prop::bool::weighted(0.2))
        .prop_map(|(steps, dies, squash)| Call { steps, dies, squash })
}

const WORK: &str = include_str!("random_homes/work.py");
const DUMP: &str = include_str!("random_homes/dump.py");

/// Runs a program in a plain directory, as an ordinary user.
fn run_in_plain_directory(directory: &Path, code: &str, input: &[u8]) -> String {
    let mut child = Command::new("setpriv")
        .args(["--reuid=12345", "--regid=12345", "--clear-groups", "/usr/bin/python3", "-c", code])
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().map(str::to_owned).collect()
}

/// Does the same in a thread and in a plain directory, and compares them after each call.
async fn compare_with_plain_directory(host: &HomesHost, calls: &[Call]) {
    let plain = tempfile::tempdir().unwrap();
    chown(plain.path(), Some(12345), Some(12345)).unwrap();
    let mut thread = Thread::default();
    for call in calls {
        let input = serde_json::to_vec(call).unwrap();
        let spec = RunSpec { stdin: input.clone(), ..RunSpec::new(Language::Python, WORK) };
        let outcome = thread.run(host, spec).await;
        let wanted = if call.dies { RunEnding::Signalled(9) } else { RunEnding::Exited(0) };
        assert_eq!(outcome.ending, wanted, "{}", outcome.stderr.to_text_lossy());
        run_in_plain_directory(plain.path(), WORK, &input);
        let found = thread.run(host, RunSpec::new(Language::Python, DUMP)).await;
        assert_eq!(found.ending, RunEnding::Exited(0), "{}", found.stderr.to_text_lossy());
        assert_eq!(found.written.layer, None, "looking writes nothing");
        let (found, wanted) = (
            lines(&found.stdout.to_text_lossy()),
            lines(&run_in_plain_directory(plain.path(), DUMP, b"")),
        );
        let more: Vec<_> = found.difference(&wanted).collect();
        let less: Vec<_> = wanted.difference(&found).collect();
        assert!(more.is_empty() && less.is_empty(), "more {more:#?}, less {less:#?}");
        if call.squash {
            let squashed = host.layers.squash_stack(&thread.layers).await.unwrap();
            thread.layers = squashed.map(|stored| stored.layer.digest).into_iter().collect();
        }
    }
}

async fn a_home_behaves_like_a_plain_directory_over_many_runs() {
    // The cache is so small that hardly any layer stays unpacked that is not in use.
    let pool = Some(PoolSettings::default());
    let Some(host) = HomesHost::start(ByteSize::kib(16), pool).await else { return };
    host.executor.prewarm_pool(Language::Python, &RunLimits::default(), &SandboxShape::default());
    let config = ProptestConfig { cases: 12, failure_persistence: None, ..Default::default() };
    let runtime = Handle::current();
    block_in_place(|| {
        proptest!(config, |(calls in vec(call(), 1..7))| {
            runtime.block_on(compare_with_plain_directory(&host, &calls));
        });
    });
    host.executor.stop().await;
}
