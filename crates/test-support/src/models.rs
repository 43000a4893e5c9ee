//! Runs in: test. A scripted model server for tests: real HTTP, both protocols.
//!
//! The script is in the conversation: the last message of the user is a JSON list with one entry
//! for each reply of the model. An entry is an object:
//!
//! - `{"text": "…"}` replies with that text, in pieces of three characters; `{"told": true}`
//!   replies with the result of the last tool call;
//! - `{"calls": [{"name": …, "arguments": …}]}` calls tools, with the arguments in pieces;
//! - `{"http": 429, "times": 2, "retry_after": "0"}` replies with this status that many times, then
//!   with the rest of the entry;
//! - `{"cut": true}` stops at the token limit, `{"break": true}` closes the stream before its end,
//!   `{"garbage": true}` sends an event that is not JSON, `{"page": true}` sends no event stream,
//!   `{"error": "…"}` sends an error inside the stream, `{"silent": true}` sends nothing more and
//!   keeps the connection open, `{"slow": 20}` pauses this many milliseconds before each chunk.
//!
//! [`Models::start_with`] gives scripts to messages in prose, for clients that write such messages.
//!
//! `models` in an entry limits it to models of these names; requests for other models get a 404.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};

/// The API key that it accepts.
pub const SECRET: &str = "mk-test-5f2a9c";

/// A running model server; it stops with the test's runtime.
pub struct Models {
    /// Where it listens.
    pub address: SocketAddr,
    state: Shared,
}

type Shared = Arc<Mutex<Memory>>;

#[derive(Default)]
struct Memory {
    /// The scripts of messages that are not scripts themselves.
    scripts: HashMap<String, Vec<Value>>,
    /// How often each entry with `times` was used.
    met: HashMap<String, u64>,
    /// The bodies of all requests.
    requests: Vec<Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    OpenAi,
    Anthropic,
}

impl Models {
    /// Starts one on a free port.
    pub async fn start() -> Self {
        Self::start_with([]).await
    }

    /// Starts one that also knows the scripts of these messages.
    pub async fn start_with(scripts: impl IntoIterator<Item = (String, Vec<Value>)>) -> Self {
        let memory = Memory { scripts: scripts.into_iter().collect(), ..Memory::default() };
        let state = Arc::new(Mutex::new(memory));
        let app = Router::new()
            .route("/v1/chat/completions", post(chat))
            .route("/v1/messages", post(messages))
            .with_state(Arc::clone(&state));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, state }
    }

    /// What a provider is configured with.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The bodies of all requests so far.
    pub fn requests(&self) -> Vec<Value> {
        self.state.lock().unwrap().requests.clone()
    }
}

async fn chat(state: State<Shared>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let key = headers.get("authorization").and_then(|value| value.to_str().ok());
    let good = key == Some(&format!("Bearer {SECRET}"));
    answer(&state, Protocol::OpenAi, good, body)
}

async fn messages(state: State<Shared>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // The public client sends the key as a bearer token, ours must send it as its own header.
    let is_public_client = header("x-stainless-package-version").is_some();
    let key = match is_public_client {
        true => header("authorization").and_then(|value| value.strip_prefix("Bearer ")),
        false => header("x-api-key"),
    };
    let good = key == Some(SECRET) && header("anthropic-version").is_some();
    answer(&state, Protocol::Anthropic, good, body)
}

fn answer(state: &Shared, protocol: Protocol, good: bool, body: Value) -> Response {
    if !good {
        let message = format!("Incorrect API key provided, the right one is {SECRET}");
        return refusal(401, &message, None);
    }
    state.lock().unwrap().requests.push(body.clone());
    if body["stream"] != true {
        return refusal(400, "this server only streams", None);
    }
    let conversation = body["messages"].as_array().cloned().unwrap_or_default();
    let found = script(&conversation, &state.lock().unwrap().scripts);
    let Some((script, turn, result)) = found else {
        return refusal(400, "the last message of the user is not a script", None);
    };
    let Some(entry) = script.get(turn) else { return refusal(400, "the script is over", None) };
    if let Some(models) = entry["models"].as_array()
        && !models.contains(&body["model"])
    {
        return refusal(404, &format!("The model {} does not exist", body["model"]), None);
    }
    if let Some(status) = entry["http"].as_u64() {
        let mut memory = state.lock().unwrap();
        let met = memory.met.entry(format!("{script:?} {turn}")).or_default();
        *met += 1;
        if *met <= entry["times"].as_u64().unwrap_or(u64::MAX) {
            let after = entry["retry_after"].as_str();
            return refusal(u16::try_from(status).unwrap(), "not now", after);
        }
    }
    if entry["page"] == true {
        return "<html>hello</html>".into_response();
    }
    let pause = Duration::from_millis(entry["slow"].as_u64().unwrap_or_default());
    streamed(events(protocol, entry, &result), pause, entry["silent"] == true)
}

/// The script, the number of the current reply, and the result of the last tool call.
fn script(
    conversation: &[Value],
    scripts: &HashMap<String, Vec<Value>>,
) -> Option<(Vec<Value>, usize, String)> {
    let text_of = |message: &Value| match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<String>()
        }
        _ => String::new(),
    };
    let at = conversation
        .iter()
        .rposition(|message| message["role"] == "user" && !text_of(message).is_empty())?;
    let text = text_of(&conversation[at]);
    let script = scripts.get(&text).cloned().or_else(|| serde_json::from_str(&text).ok())?;
    let turn = conversation[at..].iter().filter(|message| message["role"] == "assistant").count();
    let last = conversation.last()?;
    let result = match last["content"].as_array().and_then(|parts| parts.last()) {
        Some(part) => part["content"].as_str().unwrap_or_default().to_owned(),
        None => text_of(last),
    };
    Some((script, turn, result))
}

fn refusal(status: u16, message: &str, retry_after: Option<&str>) -> Response {
    let body = Json(json!({"error": {"type": "error", "message": message}}));
    let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
    if let Some(after) = retry_after {
        response.headers_mut().insert("retry-after", after.parse().unwrap());
    }
    response
}

/// The events in chunks that are split at arbitrary positions.
fn streamed(events: String, pause: Duration, silent: bool) -> Response {
    let chunks: Vec<_> = events.into_bytes().chunks(37).map(<[u8]>::to_vec).collect();
    let chunks = stream::iter(chunks).then(move |chunk| async move {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        Ok::<_, std::io::Error>(chunk)
    });
    let body = if silent {
        Body::from_stream(chunks.chain(stream::pending()))
    } else {
        Body::from_stream(chunks)
    };
    ([("content-type", "text/event-stream; charset=utf-8")], body).into_response()
}

fn pieces(text: &str, size: usize) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    letters.chunks(size).map(String::from_iter).collect()
}

/// The name and the arguments of each call of an entry.
fn calls(entry: &Value) -> Vec<(String, String)> {
    let calls = entry["calls"].as_array().cloned().unwrap_or_default();
    let call = |call: &Value| {
        let arguments = match &call["arguments"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        (call["name"].as_str().unwrap().to_owned(), arguments)
    };
    calls.iter().map(call).collect()
}

fn events(protocol: Protocol, entry: &Value, result: &str) -> String {
    let text =
        if entry["told"] == true { result } else { entry["text"].as_str().unwrap_or_default() };
    let mut events = String::new();
    let parts = match protocol {
        Protocol::OpenAi => openai(entry, text),
        Protocol::Anthropic => anthropic(entry, text),
    };
    for part in parts {
        if protocol == Protocol::Anthropic {
            events.push_str(&format!("event: {}\n", part["type"].as_str().unwrap()));
        }
        events.push_str(&format!("data: {part}\n\n"));
    }
    if entry["garbage"] == true {
        events.push_str("data: {\"choices\": [\n\n");
    }
    let broken = ["break", "garbage", "error", "silent"].iter().any(|name| !entry[name].is_null());
    if protocol == Protocol::OpenAi && !broken {
        events.push_str("data: [DONE]\n\n");
    }
    events
}

fn openai(entry: &Value, text: &str) -> Vec<Value> {
    let delta =
        |delta: Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]});
    let mut parts = vec![delta(json!({"role": "assistant", "content": ""}))];
    parts.extend(pieces(text, 3).into_iter().map(|piece| delta(json!({"content": piece}))));
    for (index, (name, arguments)) in calls(entry).into_iter().enumerate() {
        let id = format!("call_{name}{index}");
        let function = json!({"name": name, "arguments": ""});
        parts.push(delta(json!({"tool_calls": [
            {"index": index, "id": id, "type": "function", "function": function},
        ]})));
        for piece in pieces(&arguments, 7) {
            let function = json!({"arguments": piece});
            parts.push(delta(json!({"tool_calls": [{"index": index, "function": function}]})));
        }
    }
    if let Some(message) = entry["error"].as_str() {
        parts.push(json!({"error": {"message": message}}));
    }
    if ["break", "garbage", "error", "silent"].iter().any(|name| !entry[name].is_null()) {
        return parts;
    }
    let reason = match () {
        () if entry["cut"] == true => "length",
        () if entry["calls"].is_null() => "stop",
        () => "tool_calls",
    };
    parts.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}));
    parts.push(json!({"choices": [], "usage": {
        "prompt_tokens": 100, "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 40},
    }}));
    parts
}

fn anthropic(entry: &Value, text: &str) -> Vec<Value> {
    let mut parts = vec![
        json!({"type": "message_start", "message": {
            "id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": {
                "input_tokens": 60, "output_tokens": 1, "cache_read_input_tokens": 40,
            },
        }}),
        json!({"type": "ping"}),
    ];
    let mut index = 0;
    let mut block = |block: Value, deltas: Vec<Value>| {
        parts.push(json!({"type": "content_block_start", "index": index, "content_block": block}));
        for delta in deltas {
            parts.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
        parts.push(json!({"type": "content_block_stop", "index": index}));
        index += 1;
    };
    if !text.is_empty() {
        let deltas = pieces(text, 3).into_iter();
        let deltas = deltas.map(|piece| json!({"type": "text_delta", "text": piece})).collect();
        block(json!({"type": "text", "text": ""}), deltas);
    }
    for (at, (name, arguments)) in calls(entry).into_iter().enumerate() {
        let deltas = pieces(&arguments, 7).into_iter();
        let deltas = deltas.map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
        let id = format!("toolu_{name}{at}");
        block(json!({"type": "tool_use", "id": id, "name": name, "input": {}}), deltas.collect());
    }
    if let Some(message) = entry["error"].as_str() {
        parts.push(
            json!({"type": "error", "error": {"type": "overloaded_error", "message": message}}),
        );
    }
    if ["break", "garbage", "error", "silent"].iter().any(|name| !entry[name].is_null()) {
        return parts;
    }
    let reason = match () {
        () if entry["cut"] == true => "max_tokens",
        () if entry["calls"].is_null() => "end_turn",
        () => "tool_use",
    };
    let delta = json!({"stop_reason": reason});
    parts.push(json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 20}}));
    parts.push(json!({"type": "message_stop"}));
    parts
}
