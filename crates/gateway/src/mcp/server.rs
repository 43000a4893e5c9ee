//! The protocol's requests, each handed to the file that answers it.

use axum::http::request::Parts;
use cloche_engine::{Caller, Engine};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CompleteRequestMethod, CompleteRequestParams,
        CompleteResult, Implementation, ListPromptsRequestMethod, ListPromptsResult, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};

use super::{gate, run, tools};
use crate::McpConfig;

/// Who is asking.
#[derive(Clone)]
pub(super) enum Who {
    /// Each request was let in by its own key.
    OfRequest,
    /// Everyone at this end of a pipe.
    Always(Caller),
}

/// The server of one connection or request.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) engine: Engine,
    pub(super) config: McpConfig,
    pub(super) who: Who,
}

const INSTRUCTIONS: &str = "Runs code in a sandbox without network access. Use execute_code; pass \
    the same thread_id to keep files between calls.";

impl Door {
    /// Who asks this; a request that nobody let in is not answered.
    fn caller(&self, context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
        let known = match &self.who {
            Who::Always(caller) => Some(caller.clone()),
            Who::OfRequest => {
                let parts = context.extensions.get::<Parts>();
                parts.and_then(|parts| parts.extensions.get::<Caller>().cloned())
            }
        };
        known.ok_or_else(|| ErrorData::internal_error("the request has no key", None))
    }
}

impl ServerHandler for Door {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let server = Implementation::new(tools::SERVER, env!("CARGO_PKG_VERSION"))
            .with_title("Code execution sandbox");
        ServerConfig::new(capabilities).with_server_info(server).with_instructions(INSTRUCTIONS)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        (tools::canonical(name) == tools::EXECUTE).then(tools::execute)
    }

    // The library would answer these with empty lists, as if there could be some.
    async fn list_prompts(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let caller = self.caller(&context)?;
        let mut list = Vec::new();
        if gate::is_open(self, &caller).await {
            list.push(tools::execute());
        }
        Ok(ListToolsResult::with_all_items(list))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let caller = self.caller(&context)?;
        match tools::canonical(&request.name) {
            tools::EXECUTE => Ok(run::execute(self, &caller, request, &context).await),
            unknown => {
                let shown: String = unknown.chars().take(64).collect();
                Err(ErrorData::invalid_params(format!("there is no tool {shown:?}"), None))
            }
        }
    }
}
