//! Runs in: test. Cells from the outside: an `Executor`, its spawner, and programs in real cells.
//!
//! This binary is its own spawner: started with `__spawner` it is one, and with
//! `__spawner without WALL` it is one that leaves out a wall.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::{env, process::ExitCode};

use cloche_executor::spawner;
use cloche_test_support::own_main;

mod aftermath;
mod endings;
mod first_process;
mod homes;
mod homes_host;
mod host;
mod host_ids;
mod image_host;
mod image_interpreters;
mod images;
mod pool_groups;
mod random_homes;
mod reuse;
mod slow_imports;
mod storage;
mod storage_formats;
mod storage_small_files;
mod strict;
mod substrate_images;
mod substrates;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["__spawner"] => spawner::run_spawner().unwrap_or(ExitCode::FAILURE),
        ["__spawner", "without", wall] => {
            let ended = spawner::run_spawner_with(&|plan| plan.without_wall(wall));
            ended.unwrap_or(ExitCode::FAILURE)
        }
        [endings::SERVER] => endings::run_server(),
        asked => own_main::run_tests(
            &[
                aftermath::TESTS,
                endings::TESTS,
                first_process::TESTS,
                homes::TESTS,
                host_ids::TESTS,
                image_interpreters::TESTS,
                images::TESTS,
                pool_groups::TESTS,
                random_homes::TESTS,
                reuse::TESTS,
                slow_imports::TESTS,
                storage::TESTS,
                storage_formats::TESTS,
                storage_small_files::TESTS,
                strict::TESTS,
                substrate_images::TESTS,
                substrates::TESTS,
            ]
            .concat(),
            asked,
        ),
    }
}
