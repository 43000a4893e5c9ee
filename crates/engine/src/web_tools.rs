//! Runs in: server (no capabilities).
//!
//! Web tools: `web_search`, `fetch_url` and `people_search`, for models and for code in a sandbox.
//! A call is permitted by the gates, answered by a provider, and recorded with its price. What an
//! answer says is data: nothing here reads it.

mod call;
mod cell_request;
mod cell_tools;
mod config;
mod host_rates;
mod page_fetcher;
mod page_text;
mod robots;
mod search_client;

use std::sync::Arc;

use cloche_model::{AgentTool, ResponseId, TraceId, WebTool, WebToolRecord, WebToolUsage};
use cloche_store::Store;
use futures::future::join_all;

use crate::{
    Approvals, CallPermit, Caller, EngineMetrics, clock, outgoing_http::OutgoingHttpError,
    shared_parts::SharedParts,
};
use page_fetcher::PageFetcher;
use search_client::SearchClient;

pub use call::{
    FetchedPage, MAX_RESULTS, MAX_URLS, SearchHit, WebToolAnswer, WebToolCall, WebToolError,
};
pub use cell_request::{MAX_REQUEST, parse_cell_request};
pub use cell_tools::CellTools;
pub use config::{FetchConfig, SearchConfig, SearchPointers, WebToolsConfig};

/// Which execution and which response a call belongs to.
#[derive(Clone, Debug, Default)]
pub struct ToolCallOrigin {
    /// The execution whose code makes the call; `None` for a model.
    pub execution: Option<TraceId>,
    /// The response.
    pub response: Option<ResponseId>,
}

/// Answers calls of web tools.
pub struct WebTools {
    config: WebToolsConfig,
    search: Option<SearchClient>,
    people_search: Option<SearchClient>,
    fetcher: Option<PageFetcher>,
    approvals: Arc<Approvals>,
    store: Arc<dyn Store>,
    metrics: Arc<EngineMetrics>,
}

impl WebTools {
    pub(crate) fn new(
        shared: &SharedParts,
        approvals: Arc<Approvals>,
        config: WebToolsConfig,
    ) -> Result<Self, OutgoingHttpError> {
        let client =
            |config: &Option<SearchConfig>| config.clone().map(SearchClient::new).transpose();
        Ok(Self {
            search: client(&config.search)?,
            people_search: client(&config.people_search)?,
            fetcher: config.fetch.clone().map(PageFetcher::new).transpose()?,
            approvals,
            store: Arc::clone(&shared.store),
            metrics: Arc::clone(&shared.metrics),
            config,
        })
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &WebToolsConfig {
        &self.config
    }

    pub(crate) fn approvals(&self) -> &Approvals {
        &self.approvals
    }

    /// Why a tool is not offered to this caller, in a sentence that says who can change it; `None`
    /// where it is.
    pub async fn why_not_offered(&self, caller: &Caller, tool: WebTool) -> Option<String> {
        if !self.config.offers(tool) {
            return Some(no_provider(tool).message);
        }
        let closed = self.approvals.why_not_offered(caller, AgentTool::from(tool)).await;
        closed.map(|closed| closed.message)
    }

    /// What a call of a tool costs, in millionths of a dollar.
    #[must_use]
    pub fn price_of(&self, tool: WebTool) -> u64 {
        let price = match tool {
            WebTool::WebSearch => self.search.as_ref().map(SearchClient::price),
            WebTool::FetchUrl => self.fetcher.as_ref().map(PageFetcher::price),
            WebTool::PeopleSearch => self.people_search.as_ref().map(SearchClient::price),
        };
        price.unwrap_or_default()
    }

    /// Runs a call that the gates let through. It is recorded and billed if a provider answered it.
    ///
    /// # Errors
    /// If this server has no provider, the provider does not answer, or the call cannot be recorded.
    pub async fn run_call(
        &self,
        caller: &Caller,
        permit: &CallPermit,
        origin: &ToolCallOrigin,
        call: &WebToolCall,
    ) -> Result<WebToolAnswer, WebToolError> {
        let tool = call.tool();
        let answered =
            tokio::time::timeout(self.config.call_timeout, self.ask_provider(call)).await;
        let answer = answered.unwrap_or_else(|_| {
            let seconds = self.config.call_timeout.as_secs();
            Err(WebToolError::new("timeout", format!("{tool} took longer than {seconds} s")))
        });
        let result = answer.as_ref().map_or_else(|error| error.code, |_| "ok");
        self.metrics.agents.web_tool_called(tool.name(), result);
        let answer = answer?;
        let record = WebToolRecord {
            decision: permit.decision.clone(),
            team: caller.team.id.clone(),
            key: caller.key.id.clone(),
            tool,
            execution: origin.execution.clone(),
            response: origin.response.clone(),
            micro_dollars: self.price_of(tool),
            at: clock::now(),
        };
        // An answer that is not recorded would not be billed, so it is not given.
        self.store.record_tool_call(record).await.map_err(|error| {
            tracing::error!(%error, %tool, "a call of a web tool could not be recorded");
            WebToolError::unavailable("the call could not be recorded; try again")
        })?;
        Ok(answer)
    }

    /// What the code of an execution has used. If that cannot be looked up, nothing; the record
    /// still has it.
    pub async fn usage_of(&self, execution: &TraceId) -> Vec<WebToolUsage> {
        self.store.tool_usage(execution).await.unwrap_or_else(|error| {
            tracing::error!(%error, %execution, "the web tools of an execution are not known");
            Vec::new()
        })
    }

    async fn ask_provider(&self, call: &WebToolCall) -> Result<WebToolAnswer, WebToolError> {
        match call {
            WebToolCall::Search { tool, query, count } => {
                let client = match tool {
                    WebTool::PeopleSearch => &self.people_search,
                    _ => &self.search,
                };
                let client = client.as_ref().ok_or_else(|| no_provider(*tool))?;
                let results = client.search(*tool, query, *count).await?;
                Ok(WebToolAnswer::Search { results })
            }
            WebToolCall::Fetch { urls } => {
                let fetcher = self.fetcher.as_ref();
                let fetcher = fetcher.ok_or_else(|| no_provider(WebTool::FetchUrl))?;
                let pages = join_all(urls.iter().map(|url| fetcher.fetch_page(url))).await;
                match pages.iter().find_map(|page| page.error.clone()) {
                    // A call of which nothing could be read is an error, and costs nothing.
                    Some(error) if pages.iter().all(|page| page.error.is_some()) => {
                        Err(WebToolError::new("not_readable", error))
                    }
                    _ => Ok(WebToolAnswer::Pages { pages }),
                }
            }
        }
    }
}

fn no_provider(tool: WebTool) -> WebToolError {
    let section = match tool {
        WebTool::WebSearch => "search",
        WebTool::FetchUrl => "fetch",
        WebTool::PeopleSearch => "people_search",
    };
    WebToolError::unavailable(format!(
        "this server does not offer {tool}: its operator can add [tools.{section}] to its \
         configuration"
    ))
}
