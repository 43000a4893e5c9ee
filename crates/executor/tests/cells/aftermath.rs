//! Runs in: test. What follows the outcome of a run: the end of its cell, and the pool.

use cloche_executor::{PoolSettings, RunIo};
use cloche_model::{ByteSize, Language, RunLimits, RunSpec, SandboxShape};
use cloche_test_support::{eventually, own_main::OwnTest, own_tests};
use tokio_util::sync::CancellationToken;

use crate::{homes_host::HomesHost, host::start_executor};

pub(crate) const TESTS: &[OwnTest] = own_tests![
    a_cell_ends_when_the_answer_is_out_or_nothing_is_said_of_it,
    a_quiet_host_parks_cells_for_a_burst,
    a_cell_that_waits_maps_what_usual_programs_use,
    a_database_that_is_left_open_leaves_no_journal,
];

async fn a_cell_ends_when_the_answer_is_out_or_nothing_is_said_of_it() {
    let Some(executor) = start_executor(None).await else { return };
    for is_answered in [true, false] {
        let answered = CancellationToken::new();
        let io = RunIo { answered: Some(answered.clone()), ..RunIo::default() };
        let outcome = executor.run(RunSpec::new(Language::Bash, "echo 1"), io).await.unwrap();
        assert_eq!(outcome.stdout.bytes, b"1\n");
        if is_answered {
            answered.cancel();
        }
        executor.wait_for_teardown().await;
        assert_eq!(executor.read_metrics().cells, 0);
    }
    executor.stop().await;
}

async fn a_quiet_host_parks_cells_for_a_burst() {
    let pool = PoolSettings { floor: 1, quiet_forks: 5, ..PoolSettings::default() };
    let Some(executor) = start_executor(Some(pool)).await else { return };
    let (limits, shape) = (RunLimits::default(), SandboxShape::default());
    executor.prewarm_pool(Language::Python, &limits, &shape);
    eventually("the pool is filled", async || executor.is_warm()).await;
    let parked = || executor.read_metrics().buckets.iter().map(|it| it.parked).sum::<usize>();
    assert_eq!(parked(), 1, "nothing has run yet");
    executor.run(RunSpec::new(Language::Python, "print(1)"), RunIo::default()).await.unwrap();
    eventually("cells are parked while nothing runs", async || parked() == 5).await;
    executor.stop().await;
}

async fn a_cell_that_waits_maps_what_usual_programs_use() {
    // As many descriptors as a template of many cells has would show in the table of each of them.
    const MANY: usize = 80;
    const CODE: &str = "import resource\n\
        faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n\
        before = faults()\n\
        import json, re, random, dataclasses\n\
        json.dumps([1]), re.sub('a', 'b', 'a'), random.random()\n\
        print(faults() - before)\n\
        print(*[it.split()[1] for it in open('/proc/self/status') if it.startswith('FDSize')])";
    let pool = PoolSettings { floor: 1, quiet_forks: MANY, ..PoolSettings::default() };
    let Some(executor) = start_executor(Some(pool)).await else { return };
    let (limits, shape) = (RunLimits::default(), SandboxShape::default());
    executor.prewarm_pool(Language::Python, &limits, &shape);
    eventually("the pool is filled", async || executor.is_warm()).await;
    let run = async || {
        let spec = RunSpec::new(Language::Python, CODE);
        let outcome = executor.run(spec, RunIo::default()).await.unwrap();
        let printed = outcome.stdout.to_text_lossy();
        let (faults, table) = printed.trim().split_once('\n').unwrap();
        (faults.parse::<u32>().unwrap(), table.to_owned())
    };
    run().await;
    let parked = || executor.read_metrics().buckets.iter().map(|it| it.parked).sum::<usize>();
    eventually("cells are parked while nothing runs", async || parked() >= MANY).await;
    let (warm, table) = run().await;
    assert_eq!(table, "64");
    // At once: one of them finds the cell that is warm, all others find one that is not.
    let all = futures::future::join_all([run(), run(), run()]).await;
    let most = all.iter().map(|(faults, _)| *faults).max().unwrap();
    assert!(warm * 2 < most, "{warm} page faults in a warm cell, {most} in another");
    executor.stop().await;
}

async fn a_database_that_is_left_open_leaves_no_journal() {
    let pool = Some(PoolSettings { floor: 1, ..PoolSettings::default() });
    let Some(host) = HomesHost::start(ByteSize::gib(1), pool).await else { return };
    let (limits, shape) = (RunLimits::default(), SandboxShape::default());
    host.executor.prewarm_pool(Language::Python, &limits, &shape);
    eventually("the pool is filled", async || host.executor.is_warm()).await;
    let code = "import sqlite3\nc = sqlite3.connect('a.db')\nc.execute('create table t (n)')\n\
                c.commit()\nc.execute('insert into t values (1)')\nprint(c.in_transaction)";
    let outcome = host.run(RunSpec::new(Language::Python, code)).await;
    assert_eq!(outcome.stdout.bytes, b"True\n", "{}", outcome.stderr.to_text_lossy());
    let files: Vec<_> = outcome.written.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(files, ["a.db"]);
    assert_eq!(host.executor.read_metrics().cold_starts, 0, "the cell was forked");
    host.executor.stop().await;
}
