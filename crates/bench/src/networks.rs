//! Warm runs with a network beside the same without: what attaching and ending a network costs.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use cloche_egress::{BrokerClient, EgressSettings};
use cloche_executor::{Executor, ExecutorConfig, PoolSettings, RunIo};
use cloche_model::{Language, NetworkPolicy, RunSpec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::{
    BenchArguments, BenchResult,
    figures::{self, LatencyFigures},
    print_line,
};

/// The argument that makes this program the broker.
pub(crate) const BROKER: &str = "__network-broker";
/// The pause between two runs, in which the pool is refilled.
const PAUSE: Duration = Duration::from_millis(40);

/// The life of the broker.
pub(crate) fn run_broker() -> ExitCode {
    let served = io::stdin().as_fd().try_clone_to_owned().and_then(cloche_egress::broker::run);
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Measures, if it was asked for.
pub(crate) async fn measure_networks(arguments: &BenchArguments) -> BenchResult<()> {
    let only = &arguments.only;
    if !only.is_empty() && !only.iter().any(|part| "networks".contains(part.as_str())) {
        return Ok(());
    }
    let broker = start_broker().await?;
    let config = ExecutorConfig {
        pool: Some(PoolSettings::default()),
        broker: Some(broker),
        ..ExecutorConfig::with_program(std::env::current_exe()?)
    };
    let executor = Executor::start(config).await?;
    let blocked = RunSpec::new(Language::Python, "print(1)");
    let mut open = blocked.clone();
    open.sandbox.network = NetworkPolicy::Unrestricted;
    for spec in [&blocked, &open] {
        executor.prewarm_pool(Language::Python, &spec.limits, &spec.sandbox);
    }
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        for (spec, times) in [(&blocked, &mut without), (&open, &mut with)] {
            while !executor.is_warm() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tokio::time::sleep(PAUSE).await;
            times.push(time_run(&executor, spec.clone()).await?);
        }
    }
    let without = LatencyFigures::new("warm python, blocked".to_owned(), without);
    let with = LatencyFigures::new("warm python, with a network".to_owned(), with);
    let added = [50, 99].map(|percent| with.percentile(percent) - without.percentile(percent));
    figures::print_table(&[without, with]);
    print_line(&format!("\na network adds {:.2} ms (p50), {:.2} ms (p99)", added[0], added[1]));
    executor.stop().await;
    Ok(())
}

async fn time_run(executor: &Executor, spec: RunSpec) -> BenchResult<Duration> {
    let executor = executor.clone();
    let task = tokio::spawn(async move {
        let began = Instant::now();
        let outcome = executor.run(spec, RunIo::default()).await;
        (began.elapsed(), outcome)
    });
    let (took, outcome) = task.await?;
    let outcome = outcome?;
    match outcome.stdout.bytes == b"1\n" {
        true => Ok(took),
        false => Err(format!("{outcome:?}").into()),
    }
}

async fn start_broker() -> BenchResult<BrokerClient> {
    let (control, theirs): (OwnedFd, OwnedFd) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Command::new(std::env::current_exe()?).arg(BROKER).stdin(Stdio::from(theirs)).spawn()?;
    Ok(BrokerClient::connect(control, &EgressSettings::default()).await?)
}
