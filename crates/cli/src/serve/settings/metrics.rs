//! Runs in: server (no capabilities).
//!
//! Who may read `/metrics`: `[metrics]` of the file.

use cloche_gateway::MetricsAccess;
use cloche_model::Secret;
use schemars::JsonSchema;
use serde::Deserialize;

use super::SettingsError;

/// The section of the file. The token is named by environment variable.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct MetricsFile {
    /// Whether `/metrics` without a token shows the metrics that name no team.
    #[schemars(extend("default" = true))]
    open: Option<bool>,
    /// The environment variable with a token for all metrics. The admin token shows them, too.
    #[schemars(extend("x-default" = "none"))]
    token_env: Option<String>,
}

impl MetricsFile {
    /// The resulting access. `variable` reads the environment.
    pub(super) fn to_access(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<MetricsAccess, SettingsError> {
        let token = match &self.token_env {
            None => None,
            Some(name) => {
                let token = variable(name).filter(|token| !token.trim().is_empty());
                let token = token.ok_or_else(|| SettingsError::MetricsToken(name.clone()))?;
                Some(Secret::new(token.trim()))
            }
        };
        Ok(MetricsAccess { is_open: self.open.unwrap_or(true), token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_token_must_be_set() {
        let file: MetricsFile = toml::from_str("open = false\ntoken_env = \"TOKEN\"").unwrap();
        let access = file.to_access(|_| Some("secret\n".to_owned())).unwrap();
        assert!(!access.is_open && access.token.unwrap().reveal() == "secret");
        assert!(matches!(file.to_access(|_| None), Err(SettingsError::MetricsToken(_))));
        assert!(MetricsFile::default().to_access(|_| None).unwrap().is_open);
    }
}
