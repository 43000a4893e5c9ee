//! Requirements for every dispatcher. Each test runs against both.

use cloche_engine::{JobRequest, sidecar::JobLimits};
use cloche_model::{EnvVars, RequestFile, RunEnding, StreamName::Stderr, StreamName::Stdout};

use crate::{
    bench::{Bench, job, joined, limited},
    processes::{mark, sleepers, wait_for},
};

macro_rules! suite {
    ($($name:ident,)*) => {
        mod local {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let Some(bench) = super::Bench::local().await else { return };
                super::$name(bench).await;
            })*
        }
        mod remote {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let Some(bench) = super::Bench::remote().await else { return };
                super::$name(bench).await;
            })*
        }
    };
}

suite! {
    output_arrives_in_order_and_complete,
    output_is_bytes,
    output_arrives_during_the_run_and_a_cancel_kills_the_process_tree,
    a_cancel_before_the_start_cancels_the_run,
    a_timeout_kills_the_process_tree_and_keeps_the_output,
    exit_codes_and_signals_are_distinguished,
    input_files_and_variables_arrive,
    running_out_of_memory_is_reported,
    truncated_output_keeps_both_ends_and_is_counted,
    a_dropped_output_receiver_does_not_stop_the_run,
    concurrent_runs_have_separate_output,
    resource_usage_is_measured,
}

async fn output_arrives_in_order_and_complete(bench: Bench) {
    let code = "import sys\nfor n in range(30000):\n  print('out', n)\n  if n % 3 == 0: print('err', n, file=sys.stderr)";
    let (outcome, chunks) = bench.run(job("python", code)).await;
    let lines = |name: &str, step| {
        (0..30000).step_by(step).map(|n| format!("{name} {n}\n")).collect::<String>().into_bytes()
    };
    assert_eq!(outcome.ending, RunEnding::Exited(0));
    assert!(outcome.stdout.bytes == lines("out", 1) && outcome.stderr.bytes == lines("err", 3));
    assert_eq!((outcome.stdout.dropped, outcome.stderr.dropped), (0, 0));
    assert!(joined(&chunks, Stdout) == outcome.stdout.bytes);
    assert!(joined(&chunks, Stderr) == outcome.stderr.bytes);
}

async fn output_is_bytes(bench: Bench) {
    let (outcome, chunks) = bench.run(job("bash", r"printf '\xff\x00\xc3\n\r'")).await;
    assert_eq!(outcome.stdout.bytes, b"\xff\x00\xc3\n\r");
    assert_eq!(joined(&chunks, Stdout), b"\xff\x00\xc3\n\r");
}

async fn output_arrives_during_the_run_and_a_cancel_kills_the_process_tree(bench: Bench) {
    let mark = mark();
    let mut run = bench.start(job("bash", &sleepers(&mark)));
    assert_eq!(run.chunk().await.bytes, b"up\n");
    wait_for(&mark, 2);
    run.cancel.cancel();
    let outcome = run.until_over().await.0.unwrap();
    assert_eq!(outcome.ending, RunEnding::Cancelled);
    assert_eq!(outcome.stdout.bytes, b"up\n");
    wait_for(&mark, 0);
}

async fn a_cancel_before_the_start_cancels_the_run(bench: Bench) {
    let run = bench.start(job("bash", "sleep 1000"));
    run.cancel.cancel();
    assert_eq!(run.until_over().await.0.unwrap().ending, RunEnding::Cancelled);
}

async fn a_timeout_kills_the_process_tree_and_keeps_the_output(bench: Bench) {
    let mark = mark();
    let limits = JobLimits { timeout_ms: Some(1500), ..JobLimits::default() };
    let (outcome, chunks) = bench.run(limited(job("bash", &sleepers(&mark)), limits)).await;
    assert_eq!(outcome.ending, RunEnding::TimedOut);
    assert_eq!(outcome.stdout.bytes, b"up\n");
    assert_eq!(joined(&chunks, Stdout), b"up\n");
    assert!(outcome.usage.wall.as_millis() >= 1500, "{:?}", outcome.usage);
    wait_for(&mark, 0);
}

async fn exit_codes_and_signals_are_distinguished(bench: Bench) {
    for (language, code, ending) in [
        ("bash", "exit 0", RunEnding::Exited(0)),
        ("python", "raise SystemExit(3)", RunEnding::Exited(3)),
        ("node", "process.exit(255)", RunEnding::Exited(255)),
        ("bash", "kill -TERM $$", RunEnding::Signalled(15)),
        ("bash", "kill -KILL $$", RunEnding::Signalled(9)),
    ] {
        let (outcome, _) = bench.run(job(language, code)).await;
        assert_eq!(outcome.ending, ending, "{code}");
    }
    let (outcome, _) = bench.run(job("python", "1/0")).await;
    assert_eq!(outcome.ending, RunEnding::Exited(1));
    assert!(outcome.stderr.to_text_lossy().ends_with("ZeroDivisionError: division by zero\n"));
}

async fn input_files_and_variables_arrive(bench: Bench) {
    let code = "import os, sys\nprint(sys.stdin.read().upper())\nprint(open('späte Daten.bin', 'rb').read())\nprint(os.environ['COLOUR'])\nprint(sorted(os.listdir()))";
    let file = |name: &str, content: &[u8]| RequestFile {
        name: name.to_owned(),
        content: content.to_owned(),
    };
    let given = JobRequest {
        stdin: Some("größe\0\"\\\n".to_owned()),
        files: Some(vec![file("späte Daten.bin", b"\x00\xff\n"), file("-rf", b"")]),
        env: Some(EnvVars::from([("COLOUR".to_owned(), "grün \"x\"".to_owned())])),
        ..job("python", code)
    };
    let (outcome, _) = bench.run(given).await;
    let wanted =
        "GRÖSSE\0\"\\\n\nb'\\x00\\xff\\n'\ngrün \"x\"\n['-rf', 'main.py', 'späte Daten.bin']\n";
    assert_eq!(outcome.stdout.to_text_lossy(), wanted, "{}", outcome.stderr.to_text_lossy());
}

async fn running_out_of_memory_is_reported(bench: Bench) {
    let limits = JobLimits { memory_bytes: Some(64 << 20), ..JobLimits::default() };
    let code = "print('before')\nx = bytearray(1 << 28)\nx[::4096] = b'x' * len(x[::4096])\nprint('after')";
    let (outcome, _) = bench.run(limited(job("python", code), limits)).await;
    assert_eq!(outcome.ending, RunEnding::OutOfMemory, "{}", outcome.stderr.to_text_lossy());
    assert_eq!(outcome.stdout.bytes, b"before\n");
}

async fn truncated_output_keeps_both_ends_and_is_counted(bench: Bench) {
    let limits = JobLimits { output_bytes: Some(10_000), ..JobLimits::default() };
    let code = "import sys\nfor n in range(100000): print(n)\nsys.stderr.write('x' * 10000)";
    let (outcome, chunks) = bench.run(limited(job("python", code), limits)).await;
    let all: String = (0..100_000).map(|n| format!("{n}\n")).collect();
    assert!(outcome.stdout.bytes == all.as_bytes()[..10_000]);
    assert_eq!(outcome.stdout.dropped, all.len() as u64 - 10_000);
    let tail = outcome.stdout.tail();
    assert!(tail.len() >= 10_000 && all.as_bytes().ends_with(tail));
    assert_eq!((outcome.stderr.bytes.len(), outcome.stderr.dropped), (10_000, 0));
    assert!(joined(&chunks, Stdout) == all.as_bytes());
}

async fn a_dropped_output_receiver_does_not_stop_the_run(bench: Bench) {
    let mut run = bench.start(job("bash", "echo 1; sleep 0.2; seq 2 20000"));
    run.chunk().await;
    run.chunks.close();
    let outcome = run.outcome().await.unwrap();
    assert_eq!(outcome.ending, RunEnding::Exited(0));
    assert!(outcome.stdout.to_text_lossy().ends_with("\n20000\n"));
}

async fn concurrent_runs_have_separate_output(bench: Bench) {
    let runs = (0..4).map(|n| bench.start(job("bash", &format!("sleep 0.1; seq {n} 2000"))));
    for (n, run) in runs.collect::<Vec<_>>().into_iter().enumerate() {
        let (result, chunks) = run.until_over().await;
        let wanted: String = (n..=2000).map(|n| format!("{n}\n")).collect();
        assert!(joined(&chunks, Stdout) == wanted.as_bytes());
        assert_eq!(result.unwrap().stdout.to_text_lossy(), wanted);
    }
}

async fn resource_usage_is_measured(bench: Bench) {
    let code =
        "x = bytearray(64 << 20)\nx[::4096] = b'x' * len(x[::4096])\nfor n in range(10**6): pass";
    let (outcome, _) = bench.run(job("python", code)).await;
    let used = outcome.usage;
    assert!(used.wall.as_micros() > 0 && used.cpu.as_micros() > 0, "{used:?}");
    assert!(used.peak_memory.bytes() >= 64 << 20 || used.peak_memory.bytes() == 0, "{used:?}");
    assert_eq!(outcome.timings.run.as_micros(), used.wall.as_micros());
}
