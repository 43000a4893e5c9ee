//! Runs in: test. What programs commonly do works under the strict profile, parked and not.
use std::time::Duration;

use cloche_executor::{Executor, PoolSettings, RunError, RunIo};
use cloche_model::{Language, RunEnding, RunSpec, SandboxProfile};
use cloche_test_support::{own_main::OwnTest, own_tests};

use crate::host::start_executor;

pub(crate) const TESTS: &[OwnTest] = own_tests![python_node_and_bash_run_under_the_strict_profile];

const PROGRAMS: &[(Language, &str, &str)] = &[
    (Language::Python, "print('hello')", "hello\n"),
    (
        Language::Python,
        "import subprocess\nprint(subprocess.run(['sh', '-c', 'echo sub | tr a-z A-Z'], \
            capture_output=True, text=True).stdout, end='')",
        "SUB\n",
    ),
    (
        Language::Python,
        "import threading, concurrent.futures as f\nwith f.ThreadPoolExecutor(4) as pool:\n    \
            print(sum(pool.map(lambda n: n * n, range(100))))",
        "328350\n",
    ),
    (
        Language::Python,
        "import asyncio\nasync def main():\n    child = await asyncio.create_subprocess_exec('echo', \
            'async', stdout=-1)\n    print((await child.communicate())[0].decode(), end='')\n\
            asyncio.run(main())",
        "async\n",
    ),
    (
        Language::Python,
        "import multiprocessing as m, tempfile, shutil, os\nwith m.Pool(2) as pool:\n    \
            print(pool.map(abs, [-1, -2]))\nwith tempfile.TemporaryDirectory() as d:\n    \
            shutil.copy('main.py', d); print(len(os.listdir(d)))",
        "[1, 2]\n1\n",
    ),
    (Language::Node, "console.log('hello')", "hello\n"),
    (
        Language::Node,
        "const {execFileSync} = require('child_process'); const fs = require('fs/promises'); \
            const {Worker} = require('worker_threads'); \
            new Worker('require(\"worker_threads\").parentPort.postMessage(7)', {eval: true})\
            .on('message', async n => { await fs.writeFile('/tmp/x', 'y'); \
            console.log(n, execFileSync('echo', ['child']).toString().trim()) })",
        "7 child\n",
    ),
    (
        Language::Bash,
        "echo hello | tr a-z A-Z; for i in 1 2 3; do echo $i; done | wc -l",
        "HELLO\n3\n",
    ),
];

/// Where numpy is not installed there is nothing to try.
const NUMPY: &str = "try:\n    import numpy\nexcept ImportError:\n    print(45.0)\nelse:\n    \
    a = numpy.arange(10.0).reshape(2, 5); print((a @ a.T).trace() - 240.0)";

async fn run(executor: &Executor, language: Language, code: &str) -> Option<String> {
    let mut spec = RunSpec::new(language, code);
    spec.sandbox.profile = SandboxProfile::Strict;
    spec.limits.timeout = Duration::from_secs(60);
    match executor.run(spec, RunIo::default()).await {
        Err(RunError::NoInterpreter(_)) => None,
        ran => {
            let outcome = ran.unwrap();
            let said = outcome.stderr.to_text_lossy();
            assert_eq!(outcome.ending, RunEnding::Exited(0), "{language}: {code}: {said}");
            Some(outcome.stdout.to_text_lossy())
        }
    }
}

async fn python_node_and_bash_run_under_the_strict_profile() {
    for pool in [None, Some(PoolSettings { floor: 1, ..PoolSettings::default() })] {
        let Some(executor) = start_executor(pool).await else { return };
        for (language, code, expected) in PROGRAMS {
            if let Some(printed) = run(&executor, *language, code).await {
                assert_eq!(printed, *expected, "{language}: {code}");
            }
        }
        assert_eq!(run(&executor, Language::Python, NUMPY).await.unwrap(), "45.0\n");
        executor.stop().await;
    }
}
