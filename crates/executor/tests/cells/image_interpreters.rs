//! Runs in: test. The interpreters of images: which languages there are, their variables, and how
//! far they are started ahead.

use std::{path::Path, sync::Arc};

use cloche_executor::{InterpreterFacts, PoolSettings, ProgramStart, RunError, RunIo};
use cloche_model::{Language, RunEnding, RunLimits, RunSpec};
use cloche_test_support::{eventually, own_main::OwnTest, own_tests, skip};

use crate::{
    host::has_parked_fork,
    image_host::{
        ImageHost, LayerTree, PYTHON, PYTHON_PREFIX, SH, image_of, python_image, shape_of,
    },
};

pub(crate) const TESTS: &[OwnTest] = own_tests![
    languages_of_the_table_run_where_the_image_has_them,
    an_image_of_one_static_program_runs_shell_programs,
    node_waits_in_an_image_and_keeps_its_options,
    variables_of_the_image_apply_below_those_of_the_run,
    a_template_forks_the_interpreter_of_an_image,
    an_interpreter_that_cannot_wait_runs_its_programs_all_the_same,
    the_probe_says_what_each_interpreter_is_and_how_it_starts,
];

async fn languages_of_the_table_run_where_the_image_has_them() {
    let Some(host) = ImageHost::start(None).await else { return };
    let base = LayerTree::with_merged_usr();
    base.commands();
    let mut interpreters = vec![SH];
    let programs = [
        (
            Language::Perl,
            "/usr/bin/perl",
            "print 6 * 7, qq(\\n $0\\n)",
            "42\n /home/baponi/main.pl\n",
        ),
        (Language::Lua, "/usr/bin/lua5.4", "print(6 * 7, arg[0])", "42\t/home/baponi/main.lua\n"),
    ];
    for (language, path, ..) in programs {
        if !Path::new(path).exists() {
            skip(&format!("this host has no {path}: scripts/setup-tests"));
            return;
        }
        base.program(path, path);
        interpreters.push((language, path));
    }
    let image = host.image(&[&base], &interpreters).await;
    for (language, _, code, expected) in programs {
        assert_eq!(host.output(&image, language, code).await, expected, "{language}");
    }
    let code = "echo $0 ${BASH_VERSION:-no bash}";
    for language in [Language::Sh, Language::Bash] {
        let seen = host.output(&image, language, code).await;
        assert_eq!(seen, "/home/baponi/main.sh no bash\n", "{language}");
    }
    let spec = RunSpec { sandbox: shape_of(&image), ..RunSpec::new(Language::Ruby, "puts 1") };
    let error = host.host.executor.run(spec, RunIo::default()).await.unwrap_err();
    assert!(matches!(error, RunError::NotInImage { .. }));
    assert_eq!(error.to_string(), "the image has no ruby; it has bash, sh, perl, lua");
    host.host.executor.stop().await;
}

async fn an_image_of_one_static_program_runs_shell_programs() {
    let Some(host) = ImageHost::start(None).await else { return };
    if !Path::new("/bin/busybox").exists() {
        skip("this host has no static busybox: scripts/setup-tests");
        return;
    }
    let tree = LayerTree::new();
    tree.program("/bin/busybox", "/bin/busybox");
    for name in ["sh", "ls", "cat"] {
        tree.link("busybox", &format!("bin/{name}"));
    }
    let image = host.image(&[&tree], &[SH]).await;
    let seen = host
        .output(&image, Language::Bash, "ls /; cat /etc/passwd | while read a; do echo $a; done")
        .await;
    assert!(seen.starts_with("bin\ndata\ndev\netc\nhome\n"), "{seen}");
    assert!(seen.contains("baponi:x:1000:1000::/home/baponi:/bin/sh"), "{seen}");
    let probed = host.host.executor.probe_image(&Arc::new(image), |_| ()).await.unwrap();
    assert!(probed.iter().all(|found| found.facts.is_ok()), "{probed:?}");
    host.host.executor.stop().await;
}

async fn node_waits_in_an_image_and_keeps_its_options() {
    let pool = PoolSettings { floor: 1, ..PoolSettings::default() };
    let Some(host) = ImageHost::start(Some(pool)).await else { return };
    if !Path::new("/usr/bin/node").exists() {
        skip("this host has no node");
        return;
    }
    let tree = LayerTree::with_merged_usr();
    tree.program("/usr/bin/node", "/opt/node/bin/node");
    let mut image = host.image(&[&tree], &[(Language::Node, "/opt/node/bin/node")]).await;
    image.env.insert("NODE_OPTIONS".to_owned(), "--stack-trace-limit=3".to_owned());
    let executor = &host.host.executor;
    let probed = executor.probe_image(&Arc::new(image.clone()), |_| ()).await.unwrap();
    assert_eq!(probed[0].start, ProgramStart::Waiting { reason: None }, "{probed:?}");
    executor.prewarm_pool(Language::Node, &RunLimits::default(), &shape_of(&image));
    eventually("an interpreter waits", async || executor.is_warm()).await;
    let code = "console.log(process.execPath, process.env.NODE_OPTIONS, Error.stackTraceLimit, \
        process.cwd(), process._preload_modules.length)";
    let expected = "/opt/node/bin/node --stack-trace-limit=3 3 /home/baponi 0\n";
    assert_eq!(host.output(&image, Language::Node, code).await, expected);
    assert_eq!(executor.read_metrics().cold_starts, 0);
    host.host.executor.stop().await;
}

async fn variables_of_the_image_apply_below_those_of_the_run() {
    let pool = PoolSettings { floor: 1, ..PoolSettings::default() };
    let Some(host) = ImageHost::start(Some(pool)).await else { return };
    let Some(mut image) = python_image(&host).await else { return };
    for (name, value) in [
        ("PATH", "/opt/bin:/bin"),
        ("PYTHONPATH", "/opt/more"),
        ("A", "image"),
        ("B", "image"),
        ("HOME", "/root"),
    ] {
        image.env.insert(name.to_owned(), value.to_owned());
    }
    let code = "import os, sys\nprint([os.environ.get(n) for n in ('A', 'B', 'HOME', 'PYTHONPATH')])\n\
        print('/opt/more' in sys.path, any('cloche' in p for p in sys.path), os.environ['PATH'])";
    let expected = "['image', 'run', '/home/baponi', '/opt/more']\n\
        True False /home/baponi/.local/bin:/opt/bin:/bin\n";
    for _ in 0..3 {
        let mut spec =
            RunSpec { sandbox: shape_of(&image), ..RunSpec::new(Language::Python, code) };
        spec.env.insert("B".to_owned(), "run".to_owned());
        let outcome = host.host.run(spec).await;
        let said = outcome.stderr.to_text_lossy();
        assert_eq!(outcome.stdout.to_text_lossy(), expected, "{said}");
        // The first run is in a cold cell, the others are in forked ones.
        let executor = &host.host.executor;
        eventually("a template has a cell parked", async || has_parked_fork(executor)).await;
    }
    host.host.executor.stop().await;
}

async fn a_template_forks_the_interpreter_of_an_image() {
    let pool = PoolSettings { floor: 1, ..PoolSettings::default() };
    let Some(host) = ImageHost::start(Some(pool)).await else { return };
    let Some(image) = python_image(&host).await else { return };
    let executor = &host.host.executor;
    executor.prewarm_pool(Language::Python, &RunLimits::default(), &shape_of(&image));
    eventually("a template has a cell parked", async || has_parked_fork(executor)).await;
    let code = "import sys, json\nprint(sys.prefix, json.__file__, hash('cloche'))";
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(host.output(&image, Language::Python, code).await);
    }
    assert_eq!(seen[0], seen[1], "cells of one template have one seed");
    assert!(seen[0].starts_with("/opt/python /opt/python/lib/"), "{}", seen[0]);
    assert_eq!(executor.read_metrics().cold_starts, 0, "every cell was made ahead");
    host.host.executor.stop().await;
}

async fn an_interpreter_that_cannot_wait_runs_its_programs_all_the_same() {
    let pool = PoolSettings { floor: 1, ..PoolSettings::default() };
    let Some(host) = ImageHost::start(Some(pool)).await else { return };
    let Some(mut image) = python_image(&host).await else { return };
    image.env.insert("PYTHONNOUSERSITE".to_owned(), "1".to_owned());
    let executor = &host.host.executor;
    executor.prewarm_pool(Language::Python, &RunLimits::default(), &shape_of(&image));
    eventually("a cell is parked without its interpreter", async || executor.is_warm()).await;
    let code = "import site; print(site.ENABLE_USER_SITE)";
    for _ in 0..2 {
        assert_eq!(host.output(&image, Language::Python, code).await, "False\n");
    }
    assert_eq!(executor.read_metrics().on_demand_forks, 0);
    host.host.executor.stop().await;
}

async fn the_probe_says_what_each_interpreter_is_and_how_it_starts() {
    let Some(host) = ImageHost::start(None).await else { return };
    let executor = &host.host.executor;
    let Some(image) = python_image(&host).await else { return };
    let probed = executor.probe_image(&Arc::new(image.clone()), |_| ()).await.unwrap();
    let [python, bash, _sh] = &probed[..] else { panic!("{probed:?}") };
    let InterpreterFacts { version, implementation, prefix, libc } = python.facts.clone().unwrap();
    assert!(version.starts_with("3."), "{version}");
    assert_eq!(implementation.as_deref(), Some("cpython"));
    assert_eq!(prefix.as_deref(), Some(PYTHON_PREFIX));
    assert!(libc.is_some_and(|libc| libc.starts_with("glibc ")));
    assert_eq!(python.start, ProgramStart::Forked);
    assert_eq!(bash.start, ProgramStart::Waiting { reason: None });

    let without = LayerTree::new();
    without.python(&["ctypes", "_ctypes"]);
    let base = image.layers[0].clone();
    let layers = vec![base, host.store(&without).await];
    let broken = (Language::Perl, "/usr/bin/perl");
    let image = image_of(layers, &[PYTHON, broken]);
    let probed = executor.probe_image(&Arc::new(image.clone()), |_| ()).await.unwrap();
    let ProgramStart::Waiting { reason: Some(reason) } = &probed[0].start else {
        panic!("{probed:?}")
    };
    assert!(reason.contains("needs the module ctypes"), "{reason}");
    let missing = "the file, or the loader that it names, is not in the image";
    assert_eq!(probed[1].facts, Err(missing.to_owned()));
    // What the probe says is what a run does.
    let outcome = host.run(&image, Language::Perl, "").await;
    assert_eq!(outcome.ending, RunEnding::Exited(127));
    host.host.executor.stop().await;
}
