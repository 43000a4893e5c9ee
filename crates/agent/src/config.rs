//! The settings of the agent, with their defaults.

use std::{collections::BTreeMap, time::Duration};

use cloche_model::Secret;
use url::Url;

use crate::{RequestsPerMinute, TokenPrices};

/// Settings of the agent. Without providers it refuses new responses but still serves stored ones.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The model providers by name: the model `NAME/model` is requested from the provider `NAME`.
    pub providers: BTreeMap<String, ProviderConfig>,
    /// The price of a container session, in dollars.
    pub session_price: f64,
    /// The longest duration of a response, from acceptance to its end.
    pub longest: Duration,
    /// The limit on responses of one team in progress.
    pub at_once: usize,
    /// The limit on requests of one team for new responses, by its plan.
    pub requests_per_minute: RequestsPerMinute,
    /// How long responses may continue after shutdown begins.
    pub linger: Duration,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            providers: BTreeMap::new(),
            session_price: 0.03,
            longest: Duration::from_secs(1800),
            at_once: 64,
            requests_per_minute: RequestsPerMinute::default(),
            linger: Duration::from_secs(5),
        }
    }
}

/// The protocol of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderProtocol {
    /// OpenAI's chat completions, which many providers offer.
    OpenAi,
    /// Anthropic's messages API.
    Anthropic,
}

/// One provider of models.
#[derive(Clone, Debug)]
pub struct ProviderConfig {
    /// Its protocol.
    pub protocol: ProviderProtocol,
    /// Its base URL, including the version: `https://api.openai.com/v1`.
    pub base_url: Url,
    /// Its API key; local providers often need none.
    pub api_key: Option<Secret>,
    /// The prices of its tokens.
    pub prices: TokenPrices,
    /// Models with prices of their own.
    pub model_prices: BTreeMap<String, TokenPrices>,
    /// The timeout for connecting, and for silence within a reply.
    pub timeout: Duration,
    /// How often a call is retried after a transient failure.
    pub retries: u32,
    /// The wait before the first retry, unless the provider sets one.
    pub backoff: Duration,
}

impl ProviderConfig {
    /// A provider at this URL with default settings and without prices.
    #[must_use]
    pub fn new(protocol: ProviderProtocol, base_url: Url) -> Self {
        Self {
            protocol,
            base_url,
            api_key: None,
            prices: TokenPrices::default(),
            model_prices: BTreeMap::new(),
            timeout: Duration::from_secs(120),
            retries: 2,
            backoff: Duration::from_millis(500),
        }
    }
}
