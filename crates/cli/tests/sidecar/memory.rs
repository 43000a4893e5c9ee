//! Runs in: test.
//!
//! The memory of a sidecar is bounded, however much its jobs print and however slowly it is read.

use std::{fs, path::Path};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::executor::Sidecar;

const MIB: u64 = 1 << 20;

/// A line of `/proc/PID/status`, in bytes.
fn status(pid: u32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let kib: u64 = line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse().unwrap();
    kib << 10
}

/// Has the kernel forget the most memory that a process had until now; gives what it has.
fn reset_peak(pid: u32) -> u64 {
    fs::write(Path::new("/proc").join(pid.to_string()).join("clear_refs"), "5").unwrap();
    status(pid, "VmRSS")
}

/// 16 MiB to each stream, of a byte that is six in JSON.
const FLOOD: &str = "import sys
for _ in range(16):
    for stream in (sys.stdout, sys.stderr):
        stream.write(chr(1) * (1 << 20))
";

#[tokio::test(flavor = "multi_thread")]
async fn output_of_parallel_jobs_stays_within_its_budget() {
    let arguments = ["--output-memory", "64M", "--max-concurrent-jobs", "5"];
    let Some(sidecar) = Sidecar::start_with(&arguments).await else { return };
    sidecar.run(json!({ "code": "print(1)" })).await;
    let before = reset_peak(sidecar.pid());
    // 160 MiB of output, which is 960 MiB of JSON. None is read before all are there.
    let jobs = (0..5).map(|_| sidecar.post(&json!({ "code": FLOOD })).send());
    let responses: Vec<_> = join_all(jobs).await.into_iter().map(Result::unwrap).collect();
    assert!(responses.iter().all(|response| response.status() == 200));
    let results = join_all(responses.into_iter().map(|response| response.json::<Value>())).await;
    let (mut kept, mut cut) = (0, 0);
    for result in results.into_iter().map(Result::unwrap) {
        assert_eq!(result["exit_code"], 0, "the budget is no reason to fail");
        for stream in ["stdout", "stderr"] {
            assert_eq!(result[format!("{stream}_bytes")], 16 * MIB);
            kept += result[stream].as_str().unwrap().len() as u64;
        }
        cut += u64::from(result["truncated"] == true);
    }
    assert!(kept > 0 && kept <= 64 * MIB && cut > 0, "{} MiB kept, {cut} cut", kept / MIB);
    let grown = status(sidecar.pid(), "VmHWM").saturating_sub(before);
    assert!(grown <= (64 + 64) * MIB, "{} MiB", grown / MIB);
    // What was taken is given back, so the next job has all of it.
    let next = json!({ "code": "print('x' * (1 << 20))" });
    let (_, result) = sidecar.run(next).await;
    assert_eq!(result["truncated"], false);
}
