//! The loop behind the Agent API: asks a model, runs the code it writes, and answers.
//!
//! Models are asked through [`ModelProvider`]; code runs through the engine, exactly as the REST
//! door runs it. This crate knows no HTTP of its callers, no SQL and no kernel.

mod agent;
mod ask;
mod config;
mod files;
mod gate;
mod live;
mod price;
mod provider;
mod request;
mod response;
mod sandbox;
mod talk;
mod work;

pub use agent::{Agent, Begun, Follow, StartError};
pub use config::{AgentConfig, Protocol, ProviderConfig};
pub use files::ResponseFile;
pub use live::{Event, EventKind, EventReader};
pub use price::{Bill, Prices};
pub use provider::{Anthropic, Listener, ModelProvider, OpenAi, ProviderError, Trouble};
pub use request::{InputItem, NewResponse, ToolRequest};
pub use response::{Action, Failure, Item, Response, RunResult, RunStatus, SandboxCall};
pub use talk::{Call, Choice, Message, Reply, Tokens, Tool, Turn};
