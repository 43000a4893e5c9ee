//! CPython's own tests go the same way warm as cold, in the same box: each passes, fails or is
//! skipped in both. Which they do is not our concern; a box forbids some of what they try.
#![allow(clippy::unwrap_used, reason = "a test may fail at any line")]
#![allow(clippy::print_stderr, reason = "a test says what it ran")]

#[path = "support/cloche.rs"]
mod support;

#[path = "fidelity/case.rs"]
#[expect(dead_code, reason = "the cases of the other suite are not used here")]
mod case;
#[path = "fidelity/image.rs"]
#[expect(dead_code, reason = "these tests run on the host")]
mod image;
#[path = "fidelity/ways.rs"]
#[expect(dead_code, reason = "what compares output is not used here")]
mod ways;

use std::{collections::BTreeMap, fs, time::Duration};

use cloche_model::{ByteSize, Language, RunSpec};
use support::{can_sandbox, skip};
use ways::{Way, Ways};

/// How often tests that went differently are tried again: some depend on the time of day, as it
/// were, and fail now and then on a busy machine.
const TRIES: usize = 3;

/// How each test went, by its name.
type Went = BTreeMap<String, String>;

async fn run(ways: &Ways, tests: &str) -> Went {
    let mut spec = RunSpec::new(Language::Python, include_str!("regression/run.py"));
    spec.env.insert("TESTS".to_owned(), tests.to_owned());
    spec.limits.timeout = Duration::from_secs(240);
    spec.limits.memory = ByteSize::gib(2);
    spec.limits.pids = 512;
    let outcome = ways.run_as(spec, false).await;
    let said = outcome.stdout.to_text_lossy();
    assert!(said.contains("all were run"), "{tests}: {:?}\n{said}", outcome.ending);
    let mut went = Went::new();
    for (test, how) in said.lines().filter_map(|line| line.split_once(' ')) {
        let so_far = went.entry(test.to_owned()).or_default();
        *so_far += how;
    }
    went
}

/// The tests that did not go the same way, with both ways they went.
fn different(cold: &Went, warm: &Went) -> Vec<(String, String)> {
    let names = cold.keys().chain(warm.keys().filter(|name| !cold.contains_key(*name)));
    let told = names.filter(|name| cold.get(*name) != warm.get(*name)).map(|name| {
        (name.clone(), format!("{name}: {:?} cold, {:?} warm", cold.get(name), warm.get(name)))
    });
    told.collect()
}

async fn same_cold_and_warm(tests: &str, least: usize) {
    let suite = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let found = suite.into_iter().any(|dir| dir.path().join("test/test_json").exists());
    if !can_sandbox() || !(found || skip("CPython's tests are not installed: scripts/setup-tests"))
    {
        return;
    }
    let (cold, warm) = (Ways::start(Way::Cold).await, Ways::start(Way::Template).await);
    let (bare, forked) = tokio::join!(run(&cold, tests), run(&warm, tests));
    let passed = bare.values().filter(|how| *how == "passed").count();
    eprintln!("{tests}: {} tests, {passed} passed in the box", bare.len());
    assert!(bare.len() >= least, "only {} tests in {tests}", bare.len());
    let mut left = different(&bare, &forked);
    for _ in 0..TRIES {
        let names: Vec<&str> = left.iter().map(|(name, _)| name.as_str()).collect();
        if names.is_empty() {
            break;
        }
        let again = names.join(" ");
        let bare = run(&cold, &again).await;
        left = different(&bare, &run(&warm, &again).await);
    }
    cold.stop().await;
    warm.stop().await;
    let left: Vec<String> = left.into_iter().map(|(_, told)| told).collect();
    assert!(left.is_empty(), "{}", left.join("\n"));
}

/// One module of the suite, with the number of tests it has at least.
macro_rules! modules {
    ($($name:ident: $tests:expr, $least:expr;)*) => { $(
        #[test]
        fn $name() {
            ways::block_on(same_cold_and_warm($tests, $least));
        }
    )* };
}

modules! {
    json: "test.test_json", 150;
    re: "test.test_re", 100;
    string: "test.test_string", 30;
    struct_: "test.test_struct", 20;
    datetime: "test.test_datetime", 300;
    decimal: "test.test_decimal", 300;
    collections: "test.test_collections", 80;
    itertools: "test.test_itertools", 80;
    functools: "test.test_functools", 200;
    subprocess: "test.test_subprocess.ProcessTestCase test.test_subprocess.RunFuncTestCase \
        test.test_subprocess.ContextManagerTests test.test_subprocess.MiscTests", 90;
    threading: "test.test_threading", 150;
    pickle: "test.test_pickle", 500;
    // Those that do not wait for the network or for time to pass.
    asyncio: "test.test_asyncio.test_tasks test.test_asyncio.test_futures \
        test.test_asyncio.test_locks test.test_asyncio.test_queues test.test_asyncio.test_runners \
        test.test_asyncio.test_taskgroups test.test_asyncio.test_timeouts \
        test.test_asyncio.test_subprocess test.test_asyncio.test_base_events", 600;
    // The whole takes minutes: what starts processes and passes things between them.
    multiprocessing_spawn: "test.test_multiprocessing_spawn.WithProcessesTestQueue \
        test.test_multiprocessing_spawn.WithProcessesTestLock \
        test.test_multiprocessing_spawn.WithProcessesTestValue \
        test.test_multiprocessing_spawn.WithProcessesTestArray \
        test.test_multiprocessing_spawn.WithManagerTestQueue \
        test.test_multiprocessing_spawn.TestStartMethod", 15;
}
