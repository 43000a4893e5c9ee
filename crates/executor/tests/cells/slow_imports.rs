//! Runs in: test. Programs that import slow modules get cells that have imported them ahead, if
//! there are any.

use cloche_executor::{Executor, PoolSettings, RunIo};
use cloche_model::{ByteSize, Language, RunSpec};
use cloche_test_support::{eventually, own_main::OwnTest, own_tests};

use crate::host::start_executor;

pub(crate) const TESTS: &[OwnTest] = own_tests![
    a_program_that_imports_asyncio_gets_a_cell_that_has_imported_it_ahead,
    without_room_for_their_template_slow_imports_take_their_usual_way,
];

/// Says whether the library of `asyncio` is mapped and whether the module is seen, then imports it.
const ASYNC_CODE: &str = "\
import sys
print('_ssl' in open('/proc/self/maps').read(), 'asyncio' in sys.modules)
import asyncio
async def main():
    await asyncio.sleep(0)
    return 'ran'
print(asyncio.run(main()))";

async fn run_code(executor: &Executor, code: &str) -> String {
    let spec = RunSpec::new(Language::Python, code);
    executor.run(spec, RunIo::default()).await.unwrap().stdout.to_text_lossy()
}

async fn a_program_that_imports_asyncio_gets_a_cell_that_has_imported_it_ahead() {
    let pool = PoolSettings { floor: 1, quiet_forks: 0, ..PoolSettings::default() };
    let Some(executor) = start_executor(Some(pool)).await else { return };
    assert_eq!(run_code(&executor, ASYNC_CODE).await, "False False\nran\n");
    eventually("both templates have parked cells", async || {
        let buckets = executor.read_metrics().buckets;
        buckets.iter().filter(|it| it.templates == 1 && it.parked > 0).count() == 2
    })
    .await;
    assert_eq!(run_code(&executor, ASYNC_CODE).await, "True False\nran\n");
    let other = "print('_ssl' in open('/proc/self/maps').read())";
    assert_eq!(run_code(&executor, other).await, "False\n");
    executor.stop().await;
}

async fn without_room_for_their_template_slow_imports_take_their_usual_way() {
    // Less than any template takes.
    let pool = PoolSettings { floor: 1, memory: ByteSize::mib(8), ..PoolSettings::default() };
    let Some(executor) = start_executor(Some(pool)).await else { return };
    for _ in 0..2 {
        assert_eq!(run_code(&executor, ASYNC_CODE).await, "False False\nran\n");
    }
    eventually("the pool is filled", async || executor.is_warm()).await;
    assert!(executor.read_metrics().buckets.iter().all(|bucket| bucket.templates == 0));
    executor.stop().await;
}
