//! Runs in: server (root until it is confined, then its own user).
//!
//! Where code runs: on this host, on sidecars (`[remote]` of the file), or nowhere.

use std::time::Duration;

use cloche_engine::RemoteConfig;
use cloche_model::Secret;
use schemars::JsonSchema;
use serde::Deserialize;

use super::SettingsError;

/// Sidecars that run the code. Their key is not in the file but in the environment.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RemoteFile {
    /// Addresses of sidecars. An empty list turns code execution off. Their key is in
    /// `SANDBOX_EXECUTOR_API_KEY`.
    #[schemars(extend("x-default" = "this host runs the code", "x-argument" = "executor_url"))]
    pub(super) urls: Option<Vec<String>>,
    /// Seconds that one run at a sidecar may take in total.
    #[schemars(extend("default" = 65, "x-argument" = "executor_timeout"))]
    pub(super) timeout_seconds: Option<u64>,
}

/// Where code runs.
pub(crate) enum RunsOn {
    /// On an executor of this process.
    ThisHost,
    /// On sidecars.
    Sidecars(RemoteConfig),
    /// Nowhere: code execution is turned off.
    Nothing,
}

/// Where code runs. Addresses that are set but empty turn code execution off.
pub(super) fn runs_on(file: RemoteFile, no_local: bool) -> Result<RunsOn, SettingsError> {
    let Some(urls) = file.urls else {
        return Ok(if no_local { RunsOn::Nothing } else { RunsOn::ThisHost });
    };
    let urls: Vec<_> = urls.into_iter().filter(|url| !url.trim().is_empty()).collect();
    if urls.is_empty() {
        return Ok(RunsOn::Nothing);
    }
    if let Some(url) = urls.iter().find(|url| !is_address(url)) {
        return Err(SettingsError::Sidecar(url.clone()));
    }
    let key = std::env::var("SANDBOX_EXECUTOR_API_KEY").ok().filter(|key| !key.is_empty());
    let usual = RemoteConfig::default();
    Ok(RunsOn::Sidecars(RemoteConfig {
        urls,
        key: key.map(Secret::new),
        timeout: file.timeout_seconds.map_or(usual.timeout, Duration::from_secs),
        ..usual
    }))
}

fn is_address(url: &str) -> bool {
    let url = reqwest::Url::parse(url.trim());
    url.is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str, no_local: bool) -> RunsOn {
        runs_on(toml::from_str(text).unwrap(), no_local).unwrap()
    }

    #[test]
    fn addresses_that_are_set_but_empty_turn_code_execution_off() {
        assert!(matches!(place("", false), RunsOn::ThisHost));
        assert!(matches!(place("", true), RunsOn::Nothing));
        for empty in ["urls = []", "urls = [\"\"]", "urls = [\" \", \"\"]"] {
            assert!(matches!(place(empty, false), RunsOn::Nothing), "{empty}");
        }
        let RunsOn::Sidecars(remote) = place("urls = [\"\", \"http://a:1\"]", true) else {
            panic!("no sidecars");
        };
        assert_eq!(remote.urls, ["http://a:1"]);
        for wrong in ["a", "ftp://a", "a:1"] {
            let file = RemoteFile { urls: Some(vec![wrong.to_owned()]), ..RemoteFile::default() };
            assert!(runs_on(file, false).is_err(), "{wrong}");
        }
    }
}
