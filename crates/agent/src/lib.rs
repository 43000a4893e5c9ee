//! The loop behind the Agent API: asks a model, runs the code it writes, and answers.
//!
//! Models are asked through [`ModelProvider`]; code runs through the engine, exactly as the REST
//! door runs it. This crate knows no HTTP of its callers, no SQL and no kernel.

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
mod response;
mod response_task;
mod sandbox;

pub use agent::{Agent, AgentStartError, ResponseEvents, StartedResponse};
pub use chat::{
    ChatMessage, ModelReply, ModelRequest, ModelToolCall, TokenCounts, ToolChoice, ToolDefinition,
};
pub use config::{AgentConfig, ProviderConfig, ProviderProtocol};
pub use files::ResponseFile;
pub use live::{ResponseEvent, ResponseEventKind, ResponseEventReader};
pub use price::{ResponseBill, TokenPrices};
pub use provider::{
    AnthropicProvider, ModelProvider, OpenAiProvider, ProviderError, ProviderErrorKind,
    TextListener,
};
pub use request::{InputItem, NewResponse, ToolRequest};
pub use response::{
    PendingAction, Response, ResponseFailure, ResponseItem, RunResult, RunStatus, SandboxCall,
};
