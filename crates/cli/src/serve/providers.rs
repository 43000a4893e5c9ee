//! `[agent]` of the configuration file: limits, the providers of models and their prices. Keys are
//! named by their environment variable, so the file has no secrets.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use cloche_agent::{AgentConfig, ProviderConfig, ProviderProtocol, RequestsPerMinute, TokenPrices};
use cloche_model::Secret;
use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

/// A setting of the agent that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("agent.{name} in the configuration: {why}")]
pub(crate) struct AgentSettingsError {
    name: String,
    why: String,
}

impl AgentSettingsError {
    fn new(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), why: why.into() }
    }
}

/// The section as written.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AgentFile {
    /// The longest response, in seconds.
    #[schemars(extend("default" = 1800))]
    max_seconds: Option<u64>,
    /// The most concurrent responses of one team.
    #[schemars(extend("default" = 64))]
    max_responses: Option<usize>,
    /// The price of a container session in dollars.
    #[schemars(extend("default" = 0.03))]
    session_price: Option<f64>,
    /// New responses a minute of one team, by plan; 0 for no limit.
    requests_per_minute: RequestLimitFile,
    /// Providers of models, by name; see `docs/AGENT.md`.
    providers: BTreeMap<String, ProviderFile>,
}

/// Requests a minute for new responses, by plan: 0 for no limit.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct RequestLimitFile {
    /// On the plan free.
    #[schemars(extend("default" = 20))]
    free: Option<u32>,
    /// On the plan pro.
    #[schemars(extend("default" = 120))]
    pro: Option<u32>,
    /// On the plan enterprise.
    #[schemars(extend("default" = 0))]
    enterprise: Option<u32>,
}

impl RequestLimitFile {
    fn to_limits(&self, usual: RequestsPerMinute) -> Result<RequestsPerMinute, AgentSettingsError> {
        let limit = |plan: &str, given: Option<u32>, usual: Option<NonZeroU32>| match given {
            Some(limit) if limit > RequestsPerMinute::MAX => Err(AgentSettingsError::new(
                format!("requests_per_minute.{plan}"),
                format!("{limit} is more than {}; 0 means no limit", RequestsPerMinute::MAX),
            )),
            Some(limit) => Ok(NonZeroU32::new(limit)),
            None => Ok(usual),
        };
        Ok(RequestsPerMinute {
            free: limit("free", self.free, usual.free)?,
            pro: limit("pro", self.pro, usual.pro)?,
            enterprise: limit("enterprise", self.enterprise, usual.enterprise)?,
        })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ProviderFile {
    /// What the provider speaks: `openai` or `anthropic`.
    #[schemars(extend("x-default" = "required"))]
    protocol: ProtocolName,
    /// The address of its API.
    #[schemars(extend("x-default" = "required"))]
    base_url: String,
    /// The environment variable with its key.
    #[schemars(extend("x-default" = "none"))]
    api_key_env: Option<String>,
    /// Dollars for a million input tokens.
    #[schemars(extend("default" = 0.0))]
    #[serde(default)]
    input_price: f64,
    /// Dollars for a million output tokens.
    #[schemars(extend("default" = 0.0))]
    #[serde(default)]
    output_price: f64,
    /// Seconds for one call.
    #[schemars(extend("default" = 120.0))]
    timeout_seconds: Option<f64>,
    /// How often a failed call is tried again.
    #[schemars(extend("default" = 2))]
    retries: Option<u32>,
    /// Prices of single models, by name.
    #[serde(default)]
    models: BTreeMap<String, PriceFile>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PriceFile {
    /// Dollars for a million input tokens.
    #[schemars(extend("x-default" = "required"))]
    input_price: f64,
    /// Dollars for a million output tokens.
    #[schemars(extend("x-default" = "required"))]
    output_price: f64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ProtocolName {
    Openai,
    Anthropic,
}

/// The longest timeout of a provider.
const HOUR: f64 = 3600.0;
/// The maximum number of retries of a call.
const MAX_RETRIES: u32 = 10;

impl AgentFile {
    /// Checks the section. `env` looks up an environment variable.
    pub(super) fn into_config(
        self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<AgentConfig, AgentSettingsError> {
        let usual = AgentConfig::default();
        let mut providers = BTreeMap::new();
        for (name, file) in self.providers {
            let provider = file.into_config(&name, &env);
            let wrong = |why: String| AgentSettingsError::new(format!("providers.{name}"), why);
            providers.insert(name.clone(), provider.map_err(wrong)?);
        }
        let session_price = self.session_price.unwrap_or(usual.session_price);
        check_price("session_price", session_price)
            .map_err(|why| AgentSettingsError::new("session_price", why))?;
        Ok(AgentConfig {
            providers,
            session_price,
            longest: self.max_seconds.map_or(usual.longest, Duration::from_secs),
            at_once: self.max_responses.unwrap_or(usual.at_once),
            requests_per_minute: self.requests_per_minute.to_limits(usual.requests_per_minute)?,
            ..usual
        })
    }
}

impl ProviderFile {
    fn into_config(
        self,
        name: &str,
        env: &impl Fn(&str) -> Option<String>,
    ) -> Result<ProviderConfig, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return Err("a name has 1 to 64 letters, digits, hyphens and underscores".to_owned());
        }
        let url = parse_base_url(&self.base_url)?;
        let api_key =
            self.api_key_env.as_deref().map(|variable| read_api_key(variable, env)).transpose()?;
        if api_key.is_some() && url.scheme() == "http" && !is_local(&url) {
            tracing::warn!(provider = name, "the key of this provider is sent without encryption");
        }
        let protocol = match self.protocol {
            ProtocolName::Openai => ProviderProtocol::OpenAi,
            ProtocolName::Anthropic => ProviderProtocol::Anthropic,
        };
        let usual = ProviderConfig::new(protocol, url);
        let timeout = self.timeout_seconds.unwrap_or(usual.timeout.as_secs_f64());
        if !(timeout > 0.0 && timeout <= HOUR) {
            return Err(format!(
                "timeout_seconds must be more than 0 and at most 3600, got {timeout}"
            ));
        }
        let retries = self.retries.unwrap_or(usual.retries);
        if retries > MAX_RETRIES {
            return Err(format!("retries must be at most {MAX_RETRIES}, got {retries}"));
        }
        let of = |file: &PriceFile| check_prices(file.input_price, file.output_price);
        let models = self.models.iter().map(|(model, file)| Ok((model.clone(), of(file)?)));
        Ok(ProviderConfig {
            api_key,
            prices: check_prices(self.input_price, self.output_price)?,
            model_prices: models.collect::<Result<_, String>>()?,
            timeout: Duration::from_secs_f64(timeout),
            retries,
            ..usual
        })
    }
}

fn parse_base_url(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|_| format!("base_url: {text:?} is not a URL"))?;
    let plain = url.username().is_empty() && url.password().is_none();
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() || !plain {
        return Err("base_url must be http:// or https://, without user and password".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("base_url must not have a query or a fragment".to_owned());
    }
    Ok(url)
}

fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

fn read_api_key(variable: &str, env: &impl Fn(&str) -> Option<String>) -> Result<Secret, String> {
    let value =
        env(variable).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    let value =
        value.ok_or_else(|| format!("api_key_env: environment variable {variable} is not set"))?;
    // The value becomes a header. An error must not show it.
    if !value.chars().all(|c| c.is_ascii_graphic()) {
        return Err(format!("api_key_env: the value of {variable} is not a valid key"));
    }
    Ok(Secret::new(value))
}

fn check_prices(input: f64, output: f64) -> Result<TokenPrices, String> {
    check_price("input_price", input)?;
    check_price("output_price", output)?;
    Ok(TokenPrices { input, output })
}

fn check_price(name: &str, dollars: f64) -> Result<(), String> {
    if dollars.is_finite() && dollars >= 0.0 {
        return Ok(());
    }
    Err(format!("{name} must be an amount in dollars, got {dollars}"))
}

/// The settings of the Agent API.
pub(super) fn read_agent_config(
    file: AgentFile,
    grace: Option<u64>,
) -> Result<AgentConfig, AgentSettingsError> {
    let mut agent = file.into_config(|name| std::env::var(name).ok())?;
    // Responses do not outlive the grace period of their executions.
    let grace = grace.map_or(agent.linger, Duration::from_secs);
    agent.linger = agent.linger.min(grace);
    Ok(agent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AgentConfig, String> {
        let file: AgentFile = toml::from_str(text).map_err(|error| error.to_string())?;
        let env = |name: &str| (name == "KEY").then(|| "hunter2".to_owned());
        file.into_config(env).map_err(|error| error.to_string())
    }

    #[test]
    fn a_provider_is_read_from_toml() {
        let text = "[providers.openai]\nprotocol = \"openai\"\nbase_url = \"https://a.example/v1\"\n\
                    api_key_env = \"KEY\"\ninput_price = 1.25\noutput_price = 10\n\
                    [providers.openai.models.\"small\"]\ninput_price = 0.1\noutput_price = 0.2\n";
        let config = read(text).unwrap();
        let provider = &config.providers["openai"];
        assert_eq!(provider.api_key.as_ref().unwrap().reveal(), "hunter2");
        assert_eq!(provider.prices, TokenPrices { input: 1.25, output: 10.0 });
        assert_eq!(provider.model_prices["small"].output, 0.2);
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn limits_of_requests_are_read_by_plan_and_zero_means_none() {
        let usual = AgentConfig::default().requests_per_minute;
        let limits = read("[requests_per_minute]\nfree = 3\npro = 0").unwrap().requests_per_minute;
        assert_eq!((limits.free, limits.pro), (NonZeroU32::new(3), None));
        assert_eq!(limits.enterprise, usual.enterprise);
        assert_eq!(read("").unwrap().requests_per_minute, usual);
        let large = read("[requests_per_minute]\nfree = 10001").unwrap_err();
        assert!(large.contains("agent.requests_per_minute.free"), "{large}");
        assert!(read("[requests_per_minute]\nplus = 1").unwrap_err().contains("plus"));
    }

    #[test]
    fn the_example_in_the_documentation_is_accepted() {
        #[derive(Deserialize)]
        struct Whole {
            agent: AgentFile,
        }
        let page = include_str!("../../../../docs/AGENT.md");
        let examples: String =
            page.split("```").filter_map(|part| part.strip_prefix("toml\n")).collect();
        let whole: Whole = toml::from_str(&examples).unwrap();
        let config =
            whole.agent.into_config(|name| name.ends_with("_API_KEY").then(|| "k".to_owned()));
        let AgentConfig { providers, requests_per_minute, .. } = config.unwrap();
        assert_eq!(requests_per_minute, RequestsPerMinute::default());
        assert_eq!(providers.len(), 3);
        assert_eq!(providers["openai"].model_prices["gpt-5-mini"].output, 2.0);
    }

    #[test]
    fn an_error_names_the_provider() {
        let with = |lines: &str| {
            let text = format!("[providers.a]\nprotocol = \"openai\"\n{lines}");
            read(&text).unwrap_err()
        };
        assert!(with("base_url = \"ftp://a\"").contains("agent.providers.a"));
        assert!(with("base_url = \"http://a\"\nkey = 1").contains("key"));
        assert!(with("base_url = \"http://u:p@a\"").contains("without user"));
        let missing = with("base_url = \"http://a\"\napi_key_env = \"NONE\"");
        assert!(missing.contains("environment variable NONE is not set"), "{missing}");
        assert!(with("base_url = \"http://a\"\ninput_price = -1").contains("input_price"));
        let protocol = "[providers.a]\nprotocol = \"soap\"\nbase_url = \"http://a\"";
        assert!(read(protocol).unwrap_err().contains("soap"));
    }
}
