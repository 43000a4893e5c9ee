//! Runs in: test. Two spawners on one host give their cells different host ids.

use cloche_executor::{Executor, RunIo};
use cloche_model::{Language, RunSpec};
use cloche_test_support::{own_main::OwnTest, own_tests, skip};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::host::start_executor;

pub(crate) const TESTS: &[OwnTest] = own_tests![cells_of_two_spawners_have_different_host_ids];

/// Prints the host id of the guest, and then waits for its input to end.
const PROGRAM: &str = "while read inside outside count; do echo $inside $outside; done \
    < /proc/self/uid_map; echo end; read";

/// A run that has printed its host id and goes on.
struct LastingRun {
    executor: Executor,
    stdin: mpsc::Sender<Vec<u8>>,
    running: JoinHandle<()>,
    host_id: u32,
}

impl LastingRun {
    async fn start() -> Option<Self> {
        let executor = start_executor(None).await?;
        let ((output, mut printed), (stdin, input)) = (mpsc::channel(16), mpsc::channel(1));
        let io = RunIo { output: Some(output), stdin: Some(input), ..RunIo::default() };
        let run = (executor.clone(), RunSpec::new(Language::Bash, PROGRAM));
        let running = tokio::spawn(async move { drop(run.0.run(run.1, io).await.unwrap()) });
        let mut text = String::new();
        while !text.ends_with("end\n") {
            let chunk = printed.recv().await.unwrap_or_else(|| panic!("it ended: {text}"));
            text += &String::from_utf8_lossy(&chunk.bytes);
        }
        let guest = text.lines().find_map(|line| line.strip_prefix("1000 "));
        let host_id = guest.unwrap_or_else(|| panic!("{text}")).parse().unwrap();
        Some(Self { executor, stdin, running, host_id })
    }

    async fn stop(self) {
        drop(self.stdin);
        self.running.await.unwrap();
        self.executor.stop().await;
    }
}

async fn cells_of_two_spawners_have_different_host_ids() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can give each cell an id of its own");
        return;
    }
    let Some(one) = LastingRun::start().await else { return };
    let Some(other) = LastingRun::start().await else { return };
    assert_ne!(one.host_id, other.host_id);
    one.stop().await;
    other.stop().await;
}
