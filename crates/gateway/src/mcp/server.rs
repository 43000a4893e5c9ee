//! The protocol's requests, each dispatched to the module that handles it.

use axum::http::request::Parts;
use cloche_engine::{Caller, Engine, Refusal};
use cloche_model::{AgentTool as GatedTool, ErrorCode, NetworkPolicy};
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

use super::{execute_code, files, gate, message, prompts, resource_uri, result, tools, write_file};
use crate::McpConfig;

/// Where the caller of a request comes from.
#[derive(Clone)]
pub(super) enum CallerSource {
    /// Each request was authenticated with its own key.
    PerRequest,
    /// One caller for all requests of a pipe. There is no operator.
    Fixed(Caller),
}

/// The handler of one connection or request.
#[derive(Clone)]
pub(super) struct McpHandler {
    pub(super) engine: Engine,
    pub(super) config: McpConfig,
    pub(super) caller_source: CallerSource,
}

const INSTRUCTIONS: &str = "Runs code in a sandbox. Use execute_code; pass the same thread_id to \
    keep files between calls.";
const INSTRUCTIONS_WITHOUT_HOMES: &str =
    "Runs code in a sandbox. Use execute_code; nothing is kept between calls.";
/// The message about files if the executors keep none.
pub(super) const NOTHING_KEPT: &str =
    "the executors of this server keep nothing between calls, so there are no threads and no files";

impl McpHandler {
    /// Whether someone other than the person at the client could approve a call.
    pub(super) fn has_operator(&self) -> bool {
        matches!(self.caller_source, CallerSource::PerRequest)
    }

    /// Calls one of the file tools.
    async fn call_file_tool(
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
            return result::tool_error(NOTHING_KEPT).into();
        }
        if tool == tools::WRITE {
            return write_file::write_file(self, caller, request, context).await;
        }
        files::call_file_tool(self, caller, tool, request.arguments.unwrap_or_default())
            .await
            .into()
    }

    /// Refuses the request if the gate is closed, so that nothing behind it is visible.
    async fn check_open(&self, caller: &Caller) -> Result<(), ErrorData> {
        match self.engine.approvals().why_not_offered(caller, GatedTool::ExecuteCode).await {
            None => Ok(()),
            Some(closed) => Err(ErrorData::invalid_request(closed.message, None)),
        }
    }

    /// The caller of a request; an unauthenticated request is refused.
    fn identify_caller(&self, context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
        let known = match &self.caller_source {
            CallerSource::Fixed(caller) => Some(caller.clone()),
            CallerSource::PerRequest => {
                let parts = context.extensions.get::<Parts>();
                parts.and_then(|parts| parts.extensions.get::<Caller>().cloned())
            }
        };
        known.ok_or_else(|| ErrorData::internal_error("the request has no key", None))
    }
}

/// Converts a refusal to a resource error of the protocol.
fn to_resource_error(refusal: &Refusal) -> ErrorData {
    crate::error::log_server_fault(refusal);
    let message = refusal.message.to_string();
    match refusal.code {
        ErrorCode::NotFound => ErrorData::resource_not_found(message, None),
        ErrorCode::Internal | ErrorCode::Unavailable => ErrorData::internal_error(message, None),
        _ => ErrorData::invalid_params(message, None),
    }
}

impl ServerHandler for McpHandler {
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
        let name = tools::canonical_name(name)?;
        // The schemas are the same for every sandbox; only the list is shown to callers.
        let tools = tools::list_tools(self.engine.keeps_homes(), &NetworkPolicy::Blocked);
        tools.into_iter().find(|tool| tool.name == name)
    }

    async fn list_prompts(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let caller = self.identify_caller(&context)?;
        // The prompts are about the tool.
        let list =
            if gate::is_open(self, &caller).await { prompts::list_prompts() } else { Vec::new() };
        Ok(ListPromptsResult::with_all_items(list))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let caller = self.identify_caller(&context)?;
        self.check_open(&caller).await?;
        prompts::fill_prompt(&request).map(Into::into)
    }

    // The library would return an empty list, as if completion were supported.
    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    // Called for requests that the library could not parse.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let CustomRequest { method, .. } = request;
        if message::is_known_method(&method) {
            let message = format!("the params do not match those of {method}");
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
        let caller = self.identify_caller(&context)?;
        // A tool that may not be used is not listed.
        let open = gate::is_open(self, &caller).await;
        let network = &caller.sandbox.shape.network;
        let list = match open {
            true => tools::list_tools(self.engine.keeps_homes(), network),
            false => Vec::new(),
        };
        Ok(ListToolsResult::with_all_items(list))
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let caller = self.identify_caller(&context)?;
        let shown = self.engine.keeps_homes() && gate::is_open(self, &caller).await;
        let recent = match shown {
            true => files::list_recent_resources(self, &caller)
                .await
                .map_err(|refusal| to_resource_error(&refusal))?,
            false => Vec::new(),
        };
        Ok(ListResourcesResult::with_all_items(recent))
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let caller = self.identify_caller(&context)?;
        let mut templates = Vec::new();
        if self.engine.keeps_homes() && gate::is_open(self, &caller).await {
            let wrote = "a file that an execution wrote";
            templates.push(ResourceTemplate::new(resource_uri::EXECUTION_FILE_TEMPLATE, wrote));
            templates.push(ResourceTemplate::new(
                resource_uri::THREAD_FILE_TEMPLATE,
                "a file of a thread",
            ));
        }
        Ok(ListResourceTemplatesResult::with_all_items(templates))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let caller = self.identify_caller(&context)?;
        self.check_open(&caller).await?;
        let read = files::read_resource(self, &caller, &request.uri).await;
        let contents = read.map_err(|refusal| ErrorData {
            data: Some(json!({"uri": request.uri})),
            ..to_resource_error(&refusal)
        })?;
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let caller = self.identify_caller(&context)?;
        let Some(tool) = tools::canonical_name(&request.name) else {
            let shown: String = request.name.chars().take(64).collect();
            return Err(ErrorData::invalid_params(format!("there is no tool {shown:?}"), None));
        };
        let answer = match tool {
            tools::EXECUTE => {
                execute_code::call_execute_code(self, &caller, request, &context).await
            }
            tool => self.call_file_tool(&caller, tool, request, &context).await,
        };
        self.engine.agent_metrics().tool_called(tool, result::status_label(&answer));
        Ok(answer)
    }
}
