//! Runs in: sidecar (no capabilities).
//!
//! Admission at the sidecar. The caller holds the service key; there is no team, no plan and no
//! ledger. A job may use at most what the operator of the sidecar has set.

use std::time::Duration;

use cloche_layers::Layers;
use cloche_model::{
    ByteSize, CpuShare, EnvVars, ExecuteRequest, Invalid, LayerStoreId, RequestFile, RunLimits,
    RunSpec, SandboxShape, TeamId, ThreadHome, TraceId, env,
};

use super::AdmittedRun;
use crate::{
    secrets,
    sidecar::{JobHome, JobLimits, SidecarConfig},
};

/// Whose the jobs of a sidecar are: it knows no teams.
const TEAM: &str = "team_sidecar";
/// The least that an interpreter starts with.
const LEAST_MEMORY: u64 = 16 << 20;
const LEAST_DISK: u64 = 1 << 20;
const LEAST_PIDS: u64 = 8;
const LEAST_CPU_MILLI: u64 = 10;
/// The most layers of a home, as many as the kernel stacks in one overlay.
const MOST_LAYERS: usize = 500;

/// A job as it was asked for: nothing in it is trusted.
#[derive(Clone, Debug, Default)]
pub struct JobRequest {
    /// The program.
    pub code: String,
    /// Its language; Python if absent.
    pub language: Option<String>,
    /// What the program reads from its standard input.
    pub stdin: Option<String>,
    /// Milliseconds it may take; more than the maximum means the maximum.
    pub timeout_ms: Option<i64>,
    /// Files put beside the program.
    pub files: Option<Vec<RequestFile>>,
    /// Environment variables.
    pub env: Option<EnvVars>,
    /// What it may use, exactly; more than the maximum is refused.
    pub limits: JobLimits,
    /// Whether its interpreter may be forked from a shared template; yes if absent.
    pub template: Option<bool>,
    /// Whose jobs may share a template with it.
    pub pool_group: Option<String>,
    /// The home of a thread, in the layer store that the limits name.
    pub home: Option<JobHome>,
}

/// Why a job is not taken.
#[derive(Debug, thiserror::Error)]
pub enum JobRefusal {
    /// A field breaks its own rule.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// It is well formed, and more than this executor gives.
    #[error("{0}")]
    Beyond(String),
    /// It names a layer store that this executor does not use.
    #[error("limits.layer_store: this executor does not use the layer store {0}")]
    OtherStore(LayerStoreId),
    /// Every place is taken.
    #[error("this executor runs {0} jobs at once and all places are taken; try again in a moment")]
    Busy(usize),
    /// The host has nothing left to promise to it.
    #[error(
        "the memory, processors or processes of this executor's host are all promised to other jobs; \
         try again in a moment"
    )]
    Full,
    /// No cell can be started here.
    #[error("this executor cannot start a sandbox; try another one, or again in a moment")]
    NoSandbox,
    /// It is being stopped.
    #[error("the executor is shutting down; try another one, or again in a moment")]
    Draining,
    /// We could not even begin.
    #[error("something went wrong on our side; try again")]
    Internal,
}

/// Decides by the sidecar's settings.
///
/// # Errors
/// When a field breaks a rule, or asks for more than there is.
pub fn admit_job(job: JobRequest, config: &SidecarConfig) -> Result<AdmittedRun, JobRefusal> {
    if let Some(vars) = &job.env {
        env::check_level("env", vars)?;
    }
    let limits = resolve_limits(&job, config)?;
    let stores_files = job.limits.layer_store.is_some();
    let home = admit_home(job.home, job.limits.layer_store, config)?;
    let sandbox = SandboxShape {
        template: job.template.unwrap_or(true),
        profile: job.limits.profile.unwrap_or_default(),
        pool_group: job.pool_group,
        ..SandboxShape::default()
    };
    let request = ExecuteRequest {
        code: job.code,
        language: job.language,
        stdin: job.stdin,
        files: job.files,
        ..ExecuteRequest::default()
    };
    let request = request.check()?;
    sandbox.check_language(request.language)?;
    let spec = RunSpec {
        env: job.env.unwrap_or_default(),
        limits,
        sandbox,
        stdin: request.stdin,
        files: request.files,
        home,
        stores_files,
        ..RunSpec::new(request.language, request.code)
    };
    let random = secrets::random_bytes().map_err(|_| JobRefusal::Internal)?;
    let team: TeamId = TEAM.parse()?;
    Ok(AdmittedRun::new(spec, TraceId::from_random(random), team))
}

/// The home of a job, if this executor uses the layer store that the job names.
fn admit_home(
    home: Option<JobHome>,
    store: Option<LayerStoreId>,
    config: &SidecarConfig,
) -> Result<Option<ThreadHome>, JobRefusal> {
    let own = config.layers.as_ref().and_then(Layers::known_store_id);
    if let Some(store) = store.filter(|store| Some(*store) != own) {
        return Err(JobRefusal::OtherStore(store));
    }
    let Some(home) = home else { return Ok(None) };
    if store.is_none() {
        return Err(Invalid::new("home needs limits.layer_store, the store of its layers").into());
    }
    if home.layers.len() > MOST_LAYERS {
        let count = home.layers.len();
        return Err(Invalid::new(format!(
            "home.layers must have at most {MOST_LAYERS} entries, got {count}"
        ))
        .into());
    }
    Ok(Some(home.into()))
}

fn resolve_limits(job: &JobRequest, config: &SidecarConfig) -> Result<RunLimits, JobRefusal> {
    let (asked, most) = (&job.limits, &config.most);
    let usual = RunLimits::default();
    let bytes = |name, asked, least, usual: ByteSize, most: ByteSize| {
        check_bounds(name, asked, least, usual.bytes().min(most.bytes()), most.bytes())
            .map(ByteSize)
    };
    let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let cpus = check_bounds(
        "cpu_milli",
        asked.cpu_milli,
        LEAST_CPU_MILLI,
        u64::from(usual.cpus.millicores().min(most.cpus.millicores())),
        u64::from(most.cpus.millicores()),
    )?;
    let pids = check_bounds(
        "pids",
        asked.pids,
        LEAST_PIDS,
        u64::from(usual.pids.min(most.pids)),
        u64::from(most.pids),
    )?;
    Ok(RunLimits {
        timeout: resolve_timeout(job, config)?,
        memory: bytes("memory_bytes", asked.memory_bytes, LEAST_MEMORY, usual.memory, most.memory)?,
        cpus: CpuShare::from_millicores(small(cpus)),
        pids: small(pids),
        disk: bytes("disk_bytes", asked.disk_bytes, LEAST_DISK, usual.disk, most.disk)?,
        output: bytes("output_bytes", asked.output_bytes, 0, usual.output, most.output)?,
    })
}

fn check_bounds(
    name: &str,
    asked: Option<u64>,
    least: u64,
    usual: u64,
    most: u64,
) -> Result<u64, JobRefusal> {
    let value = asked.unwrap_or(usual);
    if value > most {
        return Err(JobRefusal::Beyond(format!(
            "limits.{name}: {value} exceeds this executor's maximum of {most}"
        )));
    }
    if value < least.min(most) {
        return Err(
            Invalid::new(format!("limits.{name} must be at least {least}, got {value}")).into()
        );
    }
    Ok(value)
}

/// `timeout_ms` is a wish and is cut to the maximum; `limits.timeout_ms` is meant exactly.
fn resolve_timeout(job: &JobRequest, config: &SidecarConfig) -> Result<Duration, JobRefusal> {
    let most = config.most.timeout;
    if job.limits.timeout_ms.is_some() {
        let millis = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        let exact = check_bounds("timeout_ms", job.limits.timeout_ms, 1, millis, millis)?;
        return Ok(Duration::from_millis(exact));
    }
    let Some(asked) = job.timeout_ms else { return Ok(config.default_timeout.min(most)) };
    match u64::try_from(asked) {
        Ok(millis) if millis > 0 => Ok(Duration::from_millis(millis).min(most)),
        _ => Err(Invalid::new(format!("timeout_ms must be at least 1, got {asked}")).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(job: JobRequest) -> Result<RunSpec, JobRefusal> {
        let job = JobRequest { code: "print(1)".to_owned(), ..job };
        admit_job(job, &SidecarConfig::default()).map(AdmittedRun::into_spec)
    }

    fn after(timeout_ms: Option<i64>) -> u128 {
        let job = JobRequest { timeout_ms, ..JobRequest::default() };
        admitted(job).unwrap().limits.timeout.as_millis()
    }

    #[test]
    fn a_time_limit_is_cut_to_the_maximum() {
        assert_eq!(after(None), 30_000);
        assert_eq!(after(Some(1)), 1);
        assert_eq!(after(Some(60_000)), 60_000);
        assert_eq!(after(Some(60_001)), 60_000);
        assert_eq!(after(Some(i64::MAX)), 60_000);
        for wrong in [0, -1, i64::MIN] {
            let job = JobRequest { timeout_ms: Some(wrong), ..JobRequest::default() };
            assert!(matches!(admitted(job), Err(JobRefusal::Invalid(_))), "{wrong}");
        }
    }

    #[test]
    fn an_exact_limit_is_never_cut() {
        let with = |limits| admitted(JobRequest { limits, ..JobRequest::default() });
        let small = JobLimits { memory_bytes: Some(64 << 20), ..JobLimits::default() };
        assert_eq!(with(small).unwrap().limits.memory, ByteSize::mib(64));
        for beyond in [
            JobLimits { memory_bytes: Some((1 << 30) + 1), ..JobLimits::default() },
            JobLimits { timeout_ms: Some(60_001), ..JobLimits::default() },
            JobLimits { pids: Some(u64::MAX), ..JobLimits::default() },
            JobLimits { cpu_milli: Some(1001), ..JobLimits::default() },
            JobLimits { disk_bytes: Some(u64::MAX), ..JobLimits::default() },
            JobLimits { output_bytes: Some(u64::MAX), ..JobLimits::default() },
        ] {
            assert!(matches!(with(beyond), Err(JobRefusal::Beyond(_))), "{beyond:?}");
        }
        for too_little in [
            JobLimits { memory_bytes: Some(0), ..JobLimits::default() },
            JobLimits { pids: Some(1), ..JobLimits::default() },
            JobLimits { timeout_ms: Some(0), ..JobLimits::default() },
        ] {
            assert!(matches!(with(too_little), Err(JobRefusal::Invalid(_))), "{too_little:?}");
        }
    }

    #[test]
    fn reserved_variables_are_refused() {
        let env = Some(EnvVars::from([("LD_PRELOAD".to_owned(), "x".to_owned())]));
        assert!(matches!(
            admitted(JobRequest { env, ..JobRequest::default() }),
            Err(JobRefusal::Invalid(_))
        ));
    }
}
