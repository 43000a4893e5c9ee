//! The same programs on crun, runc and runsc: output, errors and ending are those of a cold native
//! cell, byte for byte. What cannot be the same is in the table below and in `docs/FIDELITY.md`, and must
//! then really differ in one case at least.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use cloche_model::{Language, OciRuntime, Substrate};
use tokio::task::JoinSet;

use crate::{
    DOCUMENTED,
    case::{self, Case},
    support::{can_sandbox, skip},
    ways::{self, Seen, Way, Ways},
};

/// Cases that differ by the beginning of their names, where they do, and the name of the difference in
/// `docs/FIDELITY.md`.
type KnownDifference = (&'static str, &'static [OciRuntime], &'static str);

const ALL: &[OciRuntime] = &[OciRuntime::Crun, OciRuntime::Runc, OciRuntime::Runsc];
const CRUN: &[OciRuntime] = &[OciRuntime::Crun];
const RUNSC: &[OciRuntime] = &[OciRuntime::Runsc];

const DIFFERENT: &[KnownDifference] = &[
    ("identity.", ALL, "name of the interpreter"),
    ("exits.js (process.abort", ALL, "name of the interpreter"),
    ("mounts.py", ALL, "mounts of a runtime"),
    ("mount_points.py", ALL, "mounts of a runtime"),
    ("process.py", ALL, "parent of the program"),
    ("surroundings.js", ALL, "limits of a process"),
    ("surroundings.py", CRUN, "/dev/core"),
    ("surroundings.py", RUNSC, "another kernel"),
    ("stdin_sync.js", CRUN, "/dev/stdin"),
    ("stdin_sync.js", RUNSC, "/dev/stdin"),
    ("big_output.py", RUNSC, "buffered output"),
    ("broken_pipe.py", RUNSC, "buffered output"),
    ("crash_buffers.py", RUNSC, "buffered output"),
    ("encodings.py", RUNSC, "buffered output"),
    ("exec_self.py", RUNSC, "buffered output"),
    ("faults.py", RUNSC, "buffered output"),
    ("fork.py", RUNSC, "buffered output"),
    ("printed_in_c.py", RUNSC, "buffered output"),
    ("sys_facts.py", RUNSC, "buffered output"),
    ("descriptors.js", RUNSC, "another kernel"),
    ("environment.", RUNSC, "another kernel"),
    ("exits.js (process.emitWarning", RUNSC, "another kernel"),
    ("signals_to_the_first.py", RUNSC, "another kernel"),
];

/// How many cases run at the same time.
const LANES: usize = 3;
/// How long a case may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What was seen of a language on a runtime.
#[derive(Default)]
struct Findings {
    wrong: Vec<String>,
    /// The files of cases of which one differs as it may.
    differ: BTreeSet<&'static str>,
    /// The files of cases that were run and may differ.
    may_differ: BTreeSet<&'static str>,
}

impl Findings {
    fn add(&mut self, case: &Case, (native, seen): (&Seen, &Seen), runtime: OciRuntime) {
        // A case that is never the same twice.
        if case.differs.is_some() {
            return;
        }
        let is_it =
            |known: &&KnownDifference| case.name.starts_with(known.0) && known.1.contains(&runtime);
        let known = DIFFERENT.iter().find(is_it);
        self.may_differ.extend(known.map(|known| known.0));
        match (native.difference(seen), known) {
            (None, _) => {}
            (Some(what), None) => self.wrong.push(format!("{}: {what}", case.name)),
            (Some(_), Some((files, _, name))) => {
                self.differ.insert(files);
                if !DOCUMENTED.contains(&format!("`{name}`")) {
                    self.wrong.push(format!("docs/FIDELITY.md does not name `{name}`"));
                }
            }
        }
    }

    fn into_wrong(mut self) -> Vec<String> {
        let same = self.may_differ.difference(&self.differ);
        let same = same.map(|files| format!("{files} is the same now: take it off the list"));
        let same: Vec<String> = same.collect();
        self.wrong.extend(same);
        self.wrong
    }
}

async fn run_as_native(language: Language, runtime: OciRuntime) {
    if !can_sandbox() {
        return;
    }
    let (cells, substrate) = (Ways::start(Way::Cold).await, Substrate::Oci(runtime));
    if let Err(error) = cells.executor.try_substrate(substrate).await {
        skip(&error.to_string());
        return;
    }
    cells.stop().await;
    let findings = Arc::new(Mutex::new(Findings::default()));
    let cases: Vec<Case> = case::all(language);
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let cases = cases.iter().skip(lane).step_by(LANES).cloned().collect();
        lanes.spawn(run_lane(cases, runtime, Arc::clone(&findings)));
    }
    while let Some(done) = lanes.join_next().await {
        done.unwrap();
    }
    let findings = Arc::into_inner(findings).unwrap().into_inner().unwrap();
    let wrong = findings.into_wrong();
    assert!(wrong.is_empty(), "{substrate}: {}", wrong.join("\n"));
}

/// Runs some of the cases with an executor of their own, which counts how its cells start.
async fn run_lane(cases: Vec<Case>, runtime: OciRuntime, findings: Arc<Mutex<Findings>>) {
    let (cells, substrate) = (Ways::start(Way::Cold).await, Substrate::Oci(runtime));
    // Each executor tries a substrate once, in a cell that counts too.
    cells.executor.try_substrate(substrate).await.unwrap();
    for case in cases {
        let native = cells.run(&case).await;
        let mut spec = case.spec();
        spec.sandbox.substrate = substrate;
        spec.limits.timeout = TIMEOUT;
        let seen = Seen::from(cells.run_as(spec, true).await);
        findings.lock().unwrap().add(&case, (&native, &seen), runtime);
    }
    cells.stop().await;
}

macro_rules! same_on {
    ($python:ident, $node:ident, $runtime:ident) => {
        #[test]
        fn $python() {
            ways::block_on(run_as_native(Language::Python, OciRuntime::$runtime));
        }

        #[test]
        fn $node() {
            if std::fs::exists("/usr/bin/node").unwrap_or(false) || skip("this host has no node") {
                ways::block_on(run_as_native(Language::Node, OciRuntime::$runtime));
            }
        }
    };
}

same_on!(python_programs_run_the_same_on_crun, node_programs_run_the_same_on_crun, Crun);
same_on!(python_programs_run_the_same_on_runc, node_programs_run_the_same_on_runc, Runc);
same_on!(python_programs_run_the_same_on_runsc, node_programs_run_the_same_on_runsc, Runsc);
