//! What an operator can set of the agent, with the defaults.

use std::{collections::BTreeMap, time::Duration};

use cloche_model::Secret;
use url::Url;

use crate::TokenPrices;

/// Settings of the agent. Without providers it answers nothing but keeps what there was.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Who answers for a model: `NAME/model` goes to the provider `NAME`.
    pub providers: BTreeMap<String, ProviderConfig>,
    /// What a session of a container costs, in dollars.
    pub session_price: f64,
    /// How long a response may take, from its acceptance to its end.
    pub longest: Duration,
    /// How many responses of one team may be under way at once.
    pub at_once: usize,
    /// How long responses may go on when the server stops.
    pub linger: Duration,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            providers: BTreeMap::new(),
            session_price: 0.03,
            longest: Duration::from_secs(1800),
            at_once: 64,
            linger: Duration::from_secs(5),
        }
    }
}

/// How a provider is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderProtocol {
    /// Chat completions, as OpenAI and many others offer them.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
}

/// One provider of models.
#[derive(Clone, Debug)]
pub struct ProviderConfig {
    /// Its protocol.
    pub protocol: ProviderProtocol,
    /// Where it is, version included: `https://api.openai.com/v1`.
    pub base_url: Url,
    /// What it is opened with; local ones often need nothing.
    pub api_key: Option<Secret>,
    /// What its tokens cost.
    pub prices: TokenPrices,
    /// Models that cost something else.
    pub model_prices: BTreeMap<String, TokenPrices>,
    /// How long it may take to connect, and be silent while it answers.
    pub timeout: Duration,
    /// How often a call is made again that failed for a passing reason.
    pub retries: u32,
    /// How long to wait before the first of those, where the provider does not say.
    pub backoff: Duration,
}

impl ProviderConfig {
    /// A provider at this address with the usual settings and no prices.
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
