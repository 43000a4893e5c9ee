//! The protocol's requests, each handed to the file that answers it.

use axum::http::request::Parts;
use cloche_engine::{Caller, Engine, Refusal};
use cloche_model::{ErrorCode, Tool as GatedTool};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CompleteRequestMethod, CompleteRequestParams,
        CompleteResult, CustomRequest, CustomResult, GetPromptRequestParams, GetPromptResponse,
        Implementation, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
        ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
        ReadResourceResult, ResourceTemplate, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};
use serde_json::json;

use super::{addresses, files, gate, message, prompts, result, run, tools, write};
use crate::McpConfig;

/// Who is asking.
#[derive(Clone)]
pub(super) enum Who {
    /// Each request was let in by its own key.
    OfRequest,
    /// Everyone at this end of a pipe. There is no operator behind it.
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
const INSTRUCTIONS_WITHOUT_HOMES: &str = "Runs code in a sandbox without network access. Use \
    execute_code; nothing is kept between calls.";
/// What is said of files where none are kept.
pub(super) const NOTHING_KEPT: &str =
    "the executors of this server keep nothing between calls, so there are no threads and no files";

impl Door {
    /// Whether anybody but the person at the client could approve a call.
    pub(super) fn has_operator(&self) -> bool {
        matches!(self.who, Who::OfRequest)
    }

    /// A call of one of the tools for files.
    async fn call_for_files(
        &self,
        caller: &Caller,
        tool: &'static str,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResponse {
        if let Some(closed) = gate::why_closed(self, caller).await {
            return closed.into();
        }
        if !self.engine.keeps_homes() {
            return result::failed(NOTHING_KEPT).into();
        }
        if tool == tools::WRITE {
            return write::write_file(self, caller, request, context).await;
        }
        files::call(self, caller, tool, request.arguments.unwrap_or_default()).await.into()
    }

    /// Refuses what is not for this caller's agents: with the gate closed, nothing behind it is shown.
    async fn check_open(&self, caller: &Caller) -> Result<(), ErrorData> {
        match self.engine.why_not_offered(caller, GatedTool::ExecuteCode).await {
            None => Ok(()),
            Some(closed) => Err(ErrorData::invalid_request(closed.message, None)),
        }
    }

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

/// A file that cannot be had, as the protocol says it.
fn unread(refusal: &Refusal) -> ErrorData {
    crate::error::log_if_ours(refusal);
    let message = refusal.message.to_string();
    match refusal.code {
        ErrorCode::NotFound => ErrorData::resource_not_found(message, None),
        ErrorCode::Internal | ErrorCode::Unavailable => ErrorData::internal_error(message, None),
        _ => ErrorData::invalid_params(message, None),
    }
}

impl ServerHandler for Door {
    fn get_info(&self) -> ServerConfig {
        let (capabilities, instructions) = if self.engine.keeps_homes() {
            let all = ServerCapabilities::builder().enable_tools().enable_prompts();
            (all.enable_resources().build(), INSTRUCTIONS)
        } else {
            let all = ServerCapabilities::builder().enable_tools().enable_prompts();
            (all.build(), INSTRUCTIONS_WITHOUT_HOMES)
        };
        let server = Implementation::new(tools::SERVER, env!("CARGO_PKG_VERSION"))
            .with_title("Code execution sandbox");
        ServerConfig::new(capabilities).with_server_info(server).with_instructions(instructions)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let name = tools::named(name)?;
        tools::all(self.engine.keeps_homes()).into_iter().find(|tool| tool.name == name)
    }

    async fn list_prompts(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let caller = self.caller(&context)?;
        // They are about the tool.
        let list = if gate::is_open(self, &caller).await { prompts::all() } else { Vec::new() };
        Ok(ListPromptsResult::with_all_items(list))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let caller = self.caller(&context)?;
        self.check_open(&caller).await?;
        prompts::get(&request).map(Into::into)
    }

    // The library would answer this with an empty list, as if there could be some.
    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    // What the library could not read as the request that its method says.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let CustomRequest { method, .. } = request;
        if message::is_known(&method) {
            let message = format!("the params are not what {method} takes");
            return Err(ErrorData::invalid_params(message, None));
        }
        let shown: String = method.chars().take(64).collect();
        let message = format!("there is no method {shown:?}");
        Err(ErrorData::new(rmcp::model::ErrorCode::METHOD_NOT_FOUND, message, None))
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let caller = self.caller(&context)?;
        // What is not to be used is not to be seen.
        let open = gate::is_open(self, &caller).await;
        let list = if open { tools::all(self.engine.keeps_homes()) } else { Vec::new() };
        Ok(ListToolsResult::with_all_items(list))
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let caller = self.caller(&context)?;
        let shown = self.engine.keeps_homes() && gate::is_open(self, &caller).await;
        let recent = match shown {
            true => files::recent(self, &caller).await.map_err(|refusal| unread(&refusal))?,
            false => Vec::new(),
        };
        Ok(ListResourcesResult::with_all_items(recent))
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let caller = self.caller(&context)?;
        let mut templates = Vec::new();
        if self.engine.keeps_homes() && gate::is_open(self, &caller).await {
            let wrote = "a file that an execution wrote";
            templates.push(ResourceTemplate::new(addresses::OF_EXECUTION, wrote));
            templates.push(ResourceTemplate::new(addresses::OF_THREAD, "a file of a thread"));
        }
        Ok(ListResourceTemplatesResult::with_all_items(templates))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let caller = self.caller(&context)?;
        self.check_open(&caller).await?;
        let read = files::resource(self, &caller, &request.uri).await;
        let contents = read.map_err(|refusal| ErrorData {
            data: Some(json!({"uri": request.uri})),
            ..unread(&refusal)
        })?;
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let caller = self.caller(&context)?;
        let Some(tool) = tools::named(&request.name) else {
            let shown: String = request.name.chars().take(64).collect();
            return Err(ErrorData::invalid_params(format!("there is no tool {shown:?}"), None));
        };
        let answer = match tool {
            tools::EXECUTE => run::execute(self, &caller, request, &context).await,
            tool => self.call_for_files(&caller, tool, request, &context).await,
        };
        self.engine.agent_metrics().tool_called(tool, result::status(&answer));
        Ok(answer)
    }
}
