//! The loop behind the Agent API: it calls a model, runs the code that the model writes, and
//! returns the result to the model.
//!
//! Models are called through [`ModelProvider`]. Code runs through the engine, exactly as for the
//! REST API. This crate knows no HTTP of its callers, no SQL and no kernel.

mod agent;
mod chat;
mod config;
mod files;
mod gate;
mod live;
mod model_chain;
mod price;
mod provider;
mod request;
mod request_limit;
mod response;
mod response_task;
mod sandbox;
mod web_tool;

pub use agent::{Agent, AgentStartError, ResponseEvents, StartedResponse};
pub use chat::{
    ChatMessage, ModelReply, ModelRequest, ModelToolCall, TokenCounts, ToolChoice, ToolDefinition,
};
pub use config::{AgentConfig, ProviderConfig, ProviderProtocol};
pub use files::ResponseFile;
pub use live::{ResponseEvent, ResponseEventKind, ResponseEventReader};
pub use price::{ResponseBill, TokenPrices, WebToolBill};
pub use provider::{
    AnthropicProvider, ModelProvider, OpenAiProvider, ProviderError, ProviderErrorKind,
    TextListener,
};
pub use request::{InputItem, NewResponse, ToolRequest};
pub use request_limit::RequestsPerMinute;
pub use response::{
    OutputTruncation, PendingAction, Response, ResponseFailure, ResponseItem, RunResult, RunStatus,
    SandboxCall,
};
pub use web_tool::WebToolRequest;
