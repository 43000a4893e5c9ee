//! Pid 1 of a warm cell shares its template's memory: no signal of a guest's may reach it there, also
//! where Landlock does not keep guests from sending any.
//!
//! This test is its own spawner: started with `__spawner` it builds boxes without Landlock.

#![allow(clippy::unwrap_used, reason = "a test may fail at any line")]
#![allow(clippy::print_stdout, reason = "a test with its own main prints its own results")]

use std::{env, process::ExitCode, time::Duration};

use cloche_executor::{Executor, ExecutorConfig, PoolSettings, RunIo, spawner};
use cloche_model::{Language, RunEnding, RunSpec};

#[path = "support/own_main.rs"]
mod own_main;

const NAME: &str = "signals_of_a_guest_do_not_reach_its_template";

const ATTACK: &str = "import os
for signal in range(1, 65):
    os.kill(1, signal)
    os.kill(1, signal)
print('sent')
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["__spawner"] => {
            let ended = spawner::run_spawner_with(&|plan| plan.without_wall("landlock"));
            ended.unwrap_or(ExitCode::FAILURE)
        }
        asked if !own_main::is_to_run(NAME, asked) => ExitCode::SUCCESS,
        _ => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            runtime.unwrap().block_on(attack());
            ExitCode::SUCCESS
        }
    }
}

async fn attack() {
    let pool = Some(PoolSettings { floor: 1, ceiling: 2, ..PoolSettings::default() });
    let config =
        ExecutorConfig { pool, ..ExecutorConfig::with_program(env::current_exe().unwrap()) };
    let executor = match Executor::start(config).await {
        Ok(executor) => executor,
        Err(error) if env::var_os("REQUIRE_KERNEL").is_none() => {
            println!("SKIPPED {NAME}: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let plain = RunSpec::new(Language::Python, "print(1)");
    executor.prewarm_pool(Language::Python, &plain.limits, &plain.sandbox);
    for _ in 0..500 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if executor
            .read_metrics()
            .buckets
            .iter()
            .any(|shelf| shelf.parked > 0 && shelf.templates > 0)
        {
            break;
        }
    }
    let attack = RunSpec::new(Language::Python, ATTACK);
    for (spec, expected) in [(&attack, "sent\n")].into_iter().chain([(&plain, "1\n"); 6]) {
        let outcome = executor.run(spec.clone(), RunIo::default()).await.unwrap();
        assert_eq!(outcome.stdout.to_text_lossy(), expected, "{outcome:?}");
        assert_eq!(outcome.ending, RunEnding::Exited(0), "{outcome:?}");
    }
    assert_eq!(executor.read_metrics().cold_starts, 0, "all of them came from the template");
    executor.stop().await;
}
