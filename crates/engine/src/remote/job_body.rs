//! Runs in: server (no capabilities).
//!
//! A run as the body of a request to a sidecar, and the runs that a sidecar cannot take.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use cloche_model::{EnvVars, NetworkPolicy, RunLimits, RunSpec, SandboxProfile, SandboxShape};
use serde::Serialize;

use crate::{DispatchError, sidecar::JobLimits};

#[derive(Serialize)]
struct JobRequestBody<'a> {
    code: &'a str,
    language: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    stdin: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<JobFileBody<'a>>,
    #[serde(skip_serializing_if = "EnvVars::is_empty")]
    env: &'a EnvVars,
    limits: JobLimits,
    template: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool_group: Option<&'a str>,
}

#[derive(Serialize)]
struct JobFileBody<'a> {
    name: &'a str,
    content_base64: String,
}

/// The body of the request. `most` is the time that we wait for a sidecar.
pub(super) fn encode_body(spec: &RunSpec, most: Duration) -> Result<Bytes, DispatchError> {
    check_supported(spec, most)?;
    let text = |what, bytes| {
        std::str::from_utf8(bytes).map_err(|_| {
            impossible_error(format!("{what} must be UTF-8 to be run by a remote executor"))
        })
    };
    let files = spec.files.iter().map(|file| JobFileBody {
        name: file.name.as_str(),
        content_base64: STANDARD.encode(&file.content),
    });
    let body = JobRequestBody {
        code: text("the code", &spec.code)?,
        language: spec.language.name(),
        stdin: text("standard input", &spec.stdin)?,
        files: files.collect(),
        env: &spec.env,
        limits: job_limits(&spec.limits, spec.sandbox.profile),
        template: spec.sandbox.uses_template(),
        pool_group: spec.sandbox.pool_group.as_deref(),
    };
    let bytes = serde_json::to_vec(&body);
    bytes.map(Bytes::from).map_err(|error| DispatchError::Failed(error.to_string()))
}

fn impossible_error(sentence: impl Into<String>) -> DispatchError {
    DispatchError::Impossible(sentence.into())
}

/// What sidecars do not have. Preloaded modules only save time, so they are no reason to refuse.
fn check_supported(spec: &RunSpec, most: Duration) -> Result<(), DispatchError> {
    if spec.home.is_some() {
        return Err(impossible_error(
            "thread_id cannot be used here: this server's executors keep nothing between runs",
        ));
    }
    if spec.sandbox.image != SandboxShape::default().image {
        return Err(impossible_error("this server's executors run no image but their own"));
    }
    if spec.sandbox.network != NetworkPolicy::Blocked {
        return Err(impossible_error("this server's executors give programs no network"));
    }
    if spec.limits.timeout > most {
        return Err(impossible_error(format!(
            "a time limit of {}s is more than the {}s that this server waits for its executors",
            spec.limits.timeout.as_secs(),
            most.as_secs()
        )));
    }
    Ok(())
}

fn job_limits(limits: &RunLimits, profile: SandboxProfile) -> JobLimits {
    let millis = limits.timeout.as_millis();
    JobLimits {
        timeout_ms: Some(u64::try_from(millis).unwrap_or(u64::MAX)),
        memory_bytes: Some(limits.memory.bytes()),
        cpu_milli: Some(u64::from(limits.cpus.millicores())),
        pids: Some(u64::from(limits.pids)),
        disk_bytes: Some(limits.disk.bytes()),
        output_bytes: Some(limits.output.bytes()),
        profile: (profile != SandboxProfile::Standard).then_some(profile),
    }
}

#[cfg(test)]
mod tests {
    use cloche_model::{ByteSize, HomeQuota, Language, ThreadHome};

    use super::*;

    fn refusal(spec: &RunSpec) -> String {
        match encode_body(spec, Duration::from_secs(65)) {
            Err(DispatchError::Impossible(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_sidecar_cannot_do_is_refused_before_it_is_asked() {
        let spec = RunSpec::new(Language::Python, "print(1)");
        assert!(encode_body(&spec, Duration::from_secs(65)).is_ok());
        let room = HomeQuota { bytes: ByteSize::mib(1), inodes: 10 };
        let home = Some(ThreadHome { layers: Vec::new(), room });
        assert!(refusal(&RunSpec { home, ..spec.clone() }).contains("thread_id"));
        let limits = RunLimits { timeout: Duration::from_secs(66), ..spec.limits };
        assert!(refusal(&RunSpec { limits, ..spec.clone() }).contains("66s"));
        let sandbox = SandboxShape { image: "debian".to_owned(), ..SandboxShape::default() };
        assert!(refusal(&RunSpec { sandbox, ..spec.clone() }).contains("image"));
        assert!(refusal(&RunSpec { stdin: vec![0xff], ..spec }).contains("UTF-8"));
    }
}
