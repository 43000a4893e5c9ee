//! Runs in: server (no capabilities).
//!
//! A run as the body of a request to a sidecar, and the runs that a sidecar cannot take.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use cloche_model::{
    EnvVars, LayerStoreId, NetworkPolicy, RunLimits, RunSpec, SandboxProfile, SandboxShape,
    Substrate,
};
use serde::Serialize;

use super::registry::NO_NETWORK;
use crate::{
    DispatchError,
    sidecar::{JobHome, JobLimits},
};

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
    #[serde(skip_serializing_if = "Option::is_none")]
    home: Option<JobHome>,
}

#[derive(Serialize)]
struct JobFileBody<'a> {
    name: &'a str,
    content_base64: String,
}

/// The body of the request. `store` is the layer store that the sidecar shares with this server.
pub(super) fn encode_body(
    spec: &RunSpec,
    store: Option<LayerStoreId>,
) -> Result<Bytes, DispatchError> {
    check_supported(spec, store)?;
    let text = |what, bytes| {
        std::str::from_utf8(bytes).map_err(|_| {
            refused_error(format!("{what} must be UTF-8 to be run by a remote executor"))
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
        limits: JobLimits { layer_store: store, ..job_limits(&spec.limits, spec.sandbox.profile) },
        template: spec.sandbox.uses_template(),
        pool_group: spec.sandbox.pool_group.as_deref(),
        home: spec.home.clone().map(JobHome::from),
    };
    let bytes = serde_json::to_vec(&body);
    bytes.map(Bytes::from).map_err(|error| DispatchError::Failed(error.to_string()))
}

fn refused_error(sentence: impl Into<String>) -> DispatchError {
    DispatchError::Refused(sentence.into())
}

/// What sidecars do not have. Preloaded modules only save time, so they are no reason to refuse.
fn check_supported(spec: &RunSpec, store: Option<LayerStoreId>) -> Result<(), DispatchError> {
    if spec.home.is_some() && store.is_none() {
        return Err(refused_error("thread_id needs an executor that shares this server's layers"));
    }
    if !spec.mounts.is_empty() {
        return Err(refused_error("this server's executors cannot mount storage"));
    }
    if spec.sandbox.image != SandboxShape::default().image {
        return Err(refused_error("this server's executors run no image but their own"));
    }
    if spec.sandbox.substrate != Substrate::Native {
        return Err(refused_error("this server's executors have no substrate but native"));
    }
    if spec.sandbox.network != NetworkPolicy::Blocked {
        return Err(refused_error(NO_NETWORK));
    }
    if !spec.mounts.is_empty() {
        return Err(refused_error("this server's executors mount no storage"));
    }
    // They would lie in the home, and so in the layers of a thread.
    if !spec.secret_files.is_empty() {
        return Err(refused_error(
            "the sandbox has credentials as files, which this server's executors cannot give to \
             programs; inject them as variables",
        ));
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
        layer_store: None,
    }
}

#[cfg(test)]
mod tests {
    use cloche_model::{
        ByteSize, FileName, HomeQuota, Language, LayerDigest, Secret, SecretFile, ThreadHome,
    };

    use super::*;

    fn refusal(spec: &RunSpec) -> String {
        match encode_body(spec, None) {
            Err(DispatchError::Refused(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_sidecar_cannot_do_is_refused_before_it_is_asked() {
        let spec = RunSpec::new(Language::Python, "print(1)");
        assert!(encode_body(&spec, None).is_ok());
        let room = HomeQuota { bytes: ByteSize::mib(1), inodes: 10 };
        let home = Some(ThreadHome { layers: Vec::new(), room });
        assert!(refusal(&RunSpec { home, ..spec.clone() }).contains("thread_id"));
        let sandbox = SandboxShape { image: "debian".to_owned(), ..SandboxShape::default() };
        assert!(refusal(&RunSpec { sandbox, ..spec.clone() }).contains("image"));
        let substrate = "oci:crun".parse().unwrap();
        let sandbox = SandboxShape { substrate, ..SandboxShape::default() };
        assert!(refusal(&RunSpec { sandbox, ..spec.clone() }).contains("substrate"));
        let file = FileName::try_from("key.pem".to_owned()).unwrap();
        let secret_files = vec![SecretFile { name: file, content: Secret::new("hunter2") }];
        let refused = refusal(&RunSpec { secret_files, ..spec.clone() });
        assert!(refused.contains("credentials as files") && !refused.contains("hunter2"));
        assert!(refusal(&RunSpec { stdin: vec![0xff], ..spec }).contains("UTF-8"));
    }

    #[test]
    fn only_a_job_for_a_shared_store_has_the_extension() {
        let room = HomeQuota { bytes: ByteSize::mib(1), inodes: 10 };
        let layers = vec![LayerDigest::from_sha256([1; 32])];
        let home = Some(ThreadHome { layers, room });
        let plain = RunSpec::new(Language::Python, "print(1)");
        let threaded = RunSpec { home, ..plain.clone() };
        let store = LayerStoreId::from_random([7; 16]);
        let encode = |spec, store| -> serde_json::Value {
            serde_json::from_slice(&encode_body(spec, store).unwrap()).unwrap()
        };
        let sent = encode(&plain, None);
        assert!(sent.get("home").is_none() && sent["limits"].get("layer_store").is_none());
        let sent = encode(&threaded, Some(store));
        assert_eq!(sent["limits"]["layer_store"], store.to_string());
        assert_eq!(sent["home"]["bytes"], 1 << 20);
        let digest = LayerDigest::from_sha256([1; 32]);
        assert_eq!(sent["home"]["layers"], serde_json::json!([digest]));
    }
}
