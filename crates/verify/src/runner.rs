//! Playing a probe: the runs it takes, in real sandboxes, and what the host looked like around them.

use std::{
    io,
    time::{Duration, Instant},
};

use cloche_executor::{Executor, RunError, RunIo};
use cloche_model::{
    FileName, InputFile, OutputChunk, RunOutcome, RunSpec, SandboxShape, StreamName,
};
use tokio::sync::mpsc;

use crate::{
    decoys::HostDecoys,
    host::{self, HostCounts},
    probes::{PRELUDE, Probe, ProbeScenario},
    substrates,
    verdict::{ProbeEvidence, ProbeVerdict},
};

/// How many runs look for what was planted after the run that planted it has ended.
const AFTERWARDS: usize = 4;

/// How often a probe is played whose run only ended late. A busy host delays one end or another; a
/// missing wall delays each.
const LATE_TRIES: usize = 3;

/// Where probes are played.
pub struct ProbeRunner {
    /// Runs the programs.
    pub executor: Executor,
    /// What the programs look for.
    pub decoys: HostDecoys,
    /// The sandbox they run in, but for the profile, which is the probe's.
    pub shape: SandboxShape,
}

/// What became of a probe.
#[derive(Debug)]
pub enum ProbeFinding {
    /// It was decided.
    Decided(ProbeVerdict),
    /// Its language is not on this host.
    NotHere(String),
    /// No sandbox could be started, or one was lost.
    NotStarted(String),
}

/// What one or more runs gave.
struct ProbeRuns {
    outcome: RunOutcome,
    said: String,
    took: Duration,
    neighbour: Option<Duration>,
}

impl ProbeRunner {
    /// Waits until a cell for this probe is parked; a while at most, as a run needs none.
    pub async fn warm_up(&self, probe: &Probe) {
        self.executor.prewarm_pool(probe.language, &(probe.limits)(), &self.shape_for(probe));
        // Not a wait without an end: where no cell can be parked, the probe runs in a cold one.
        for _ in 0..200 {
            if self.executor.is_warm() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Plays one probe and decides.
    pub async fn run_and_judge(&self, probe: &Probe) -> ProbeFinding {
        let mut finding = self.run_and_judge_once(probe).await;
        for _ in 1..LATE_TRIES {
            match &finding {
                ProbeFinding::Decided(verdict) if verdict.is_only_late => {
                    finding = self.run_and_judge_once(probe).await;
                }
                _ => break,
            }
        }
        finding
    }

    async fn run_and_judge_once(&self, probe: &Probe) -> ProbeFinding {
        if probe.alone {
            self.executor.wait_for_teardown().await;
        }
        let (before, resident) = (HostCounts::take(), host::resident_kib());
        let cpu = host::own_processor_time();
        let played = match self.run_probe(probe).await {
            Ok(played) => played,
            Err(RunError::NoInterpreter(language)) => {
                return ProbeFinding::NotHere(format!(
                    "not tried: {language} is not installed here"
                ));
            }
            // Where no cell gets a network, there is none to hold.
            Err(error @ RunError::Network(_)) => {
                let why = cloche_model::error_chain(&error);
                return ProbeFinding::NotHere(format!("not tried: {why}"));
            }
            Err(error) => return ProbeFinding::NotStarted(cloche_model::error_chain(&error)),
        };
        if probe.alone {
            self.executor.wait_for_teardown().await;
        }
        let substrate = self.shape.substrate;
        let said = substrates::leave_out_checks(substrate, probe, &played.said);
        let judge = substrates::judge_of(substrate, probe);
        ProbeFinding::Decided(judge(&ProbeEvidence {
            outcome: &played.outcome,
            said: &said,
            took: played.took,
            limits: (probe.limits)(),
            neighbour: played.neighbour,
            before,
            after: HostCounts::take(),
            own_cpu: host::own_processor_time().saturating_sub(cpu),
            grown_kib: host::resident_kib().saturating_sub(resident),
            decoys: &self.decoys,
        }))
    }

    fn shape_for(&self, probe: &Probe) -> SandboxShape {
        let network = (probe.network)();
        SandboxShape { profile: probe.profile, network, ..self.shape.clone() }
    }

    async fn run_probe(&self, probe: &Probe) -> Result<ProbeRuns, RunError> {
        match probe.scenario {
            ProbeScenario::Once => self.run_once(probe).await,
            ProbeScenario::Beside => self.run_beside_neighbour(probe).await,
            ProbeScenario::Pair => self.run_pair(probe, false).await,
            ProbeScenario::PairThenAfter => self.run_pair(probe, true).await,
        }
    }

    fn build_spec(&self, probe: &Probe, role: &str, found: &str) -> io::Result<RunSpec> {
        let mut spec = RunSpec::new(probe.language, probe.code);
        spec.limits = (probe.limits)();
        spec.sandbox = self.shape_for(probe);
        spec.env = self.decoys.probe_env()?;
        spec.env.insert("PROBE_ROLE".to_owned(), role.to_owned());
        spec.env.insert("PROBE_FOUND".to_owned(), found.to_owned());
        let name = FileName::try_from("probe.py".to_owned()).map_err(io::Error::other)?;
        spec.files = vec![InputFile { name, content: PRELUDE.into() }];
        Ok(spec)
    }

    async fn run_once(&self, probe: &Probe) -> Result<ProbeRuns, RunError> {
        let spec = self.build_spec(probe, "", "")?;
        let started = Instant::now();
        let outcome = self.executor.run(spec, RunIo::default()).await?;
        let took = started.elapsed();
        Ok(ProbeRuns { said: outcome.stdout.to_text_lossy(), outcome, took, neighbour: None })
    }

    /// The probe, and half-way to its deadline a run of somebody else.
    async fn run_beside_neighbour(&self, probe: &Probe) -> Result<ProbeRuns, RunError> {
        let neighbour = async {
            tokio::time::sleep((probe.limits)().timeout / 2).await;
            let started = Instant::now();
            let spec = RunSpec::new(probe.language, "echo here");
            self.executor.run(spec, RunIo::default()).await.map(|_| started.elapsed())
        };
        let (played, neighbour) = tokio::join!(self.run_once(probe), neighbour);
        Ok(ProbeRuns { neighbour: Some(neighbour?), ..played? })
    }

    /// One run plants something and stays; others look for it.
    async fn run_pair(&self, probe: &Probe, also_after: bool) -> Result<ProbeRuns, RunError> {
        let started = Instant::now();
        let (output, mut printed) = mpsc::channel(16);
        let (stay, stdin) = mpsc::channel(1);
        let io = RunIo { output: Some(output), stdin: Some(stdin), ..RunIo::default() };
        let first = self.executor.run(self.build_spec(probe, "plant", "")?, io);
        let second = async {
            let found = wait_until_ready(&mut printed).await;
            let spec = self.build_spec(probe, "look", &found)?;
            let outcome = self.executor.run(spec, RunIo::default()).await;
            drop(stay);
            // The first must not block on output that is not read.
            while printed.recv().await.is_some() {}
            outcome.map(|outcome| (outcome, found))
        };
        let (first, second) = tokio::join!(first, second);
        let (first, (outcome, found)) = (first?, second?);
        let mut said = outcome.stdout.to_text_lossy() + &first.stdout.to_text_lossy();
        // More often than cells are parked: the first may have been made before.
        for _ in 0..if also_after { AFTERWARDS } else { 0 } {
            let spec = self.build_spec(probe, "look", &found)?;
            said += &self.executor.run(spec, RunIo::default()).await?.stdout.to_text_lossy();
        }
        if !said.lines().any(|line| line.starts_with("READY")) {
            let stderr = first.stderr.to_text_lossy();
            said += &format!("BROKE nothing was planted: {}", stderr.lines().last().unwrap_or("?"));
        }
        Ok(ProbeRuns { outcome, said, took: started.elapsed(), neighbour: None })
    }
}

/// Reads until the first run says that it is ready, and what it wants the second to know.
async fn wait_until_ready(printed: &mut mpsc::Receiver<OutputChunk>) -> String {
    let mut text = Vec::new();
    while let Some(OutputChunk { stream, bytes, .. }) = printed.recv().await {
        if stream == StreamName::Stdout {
            text.extend(bytes);
        }
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        if let Some(line) = lines.find_map(|line| line.strip_prefix("READY")) {
            return line.trim().to_owned();
        }
    }
    String::new()
}
