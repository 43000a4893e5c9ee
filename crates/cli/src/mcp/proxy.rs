//! Forwards messages from standard input to a server, and its messages to standard output. Knows
//! only the parts of the protocol that the transport needs: sessions, versions, and which response
//! belongs to which request.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use bytes::Bytes;
use cloche_model::error_chain;
use reqwest::{Method, RequestBuilder, Response, StatusCode, header};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Stdout},
    sync::Mutex,
    task::JoinHandle,
};

use super::{endpoint::McpEndpoint, sse_decoder::SseDecoder, wait_for_closed_stdout};

const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";
/// The metadata field in which a message of newer protocol versions states its version.
const OWN_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// The longest response that is not a stream.
const ANSWER: usize = 64 << 20;
/// How long ending the session may take.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The state of the transport.
struct McpProxy {
    remote: McpEndpoint,
    output: Mutex<Stdout>,
    session: Mutex<ProxySession>,
    questions: Mutex<ServerQuestions>,
}

/// Requests of the server to the client.
#[derive(Default)]
struct ServerQuestions {
    /// Ids of requests without a response.
    open: Vec<Value>,
    /// The client has disconnected and sends no more responses.
    closed: bool,
}

#[derive(Clone, Default)]
struct ProxySession {
    id: Option<String>,
    version: Option<String>,
    /// The client's `initialize` request, to repeat when the server has lost the session.
    beginning: Option<Value>,
}

/// Forwards messages until standard input is closed and every request has a response.
pub(super) async fn run_proxy(remote: McpEndpoint) -> io::Result<()> {
    let proxy = Arc::new(McpProxy {
        remote,
        output: Mutex::new(tokio::io::stdout()),
        session: Mutex::default(),
        questions: Mutex::default(),
    });
    let mut lines = BufReader::new(tokio::io::stdin()).split(b'\n');
    let mut waiting: HashMap<String, JoinHandle<()>> = HashMap::new();
    while let Some(line) = lines.next_segment().await? {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let Ok(message) = serde_json::from_slice::<Value>(&line) else {
            proxy.answer_error(&Value::Null, -32700, "this line is not JSON").await;
            continue;
        };
        waiting.retain(|_, task| !task.is_finished());
        proxy.take_message(message, &mut waiting).await;
    }
    tokio::select! {
        () = proxy.answer_the_rest(waiting) => {}
        () = wait_for_closed_stdout() => {}
    }
    let _ = tokio::time::timeout(END_TIMEOUT, proxy.end_session()).await;
    Ok(())
}

impl McpProxy {
    /// Waits for the responses to requests that the client sent before it closed its end. Requests
    /// of the server in the meantime get an error, because the client cannot respond any more.
    async fn answer_the_rest(&self, waiting: HashMap<String, JoinHandle<()>>) {
        let mut questions = self.questions.lock().await;
        questions.closed = true;
        let open = std::mem::take(&mut questions.open);
        drop(questions);
        for id in open {
            self.answer_client_left(id).await;
        }
        for task in waiting.into_values() {
            // A cancelled request has no response.
            let _ = task.await;
        }
    }

    /// Whether the client can receive this message. Requests to a closed client get an error
    /// instead.
    async fn can_be_passed_on(&self, value: &Value) -> bool {
        if value["method"].is_null() || value["id"].is_null() {
            return true;
        }
        let mut questions = self.questions.lock().await;
        if !questions.closed {
            questions.open.push(value["id"].clone());
            return true;
        }
        drop(questions);
        self.answer_client_left(value["id"].clone()).await;
        false
    }

    async fn answer_client_left(&self, id: Value) {
        let error = json!({"code": -32603, "message": "the client has left"});
        let answer = json!({"jsonrpc": "2.0", "id": id, "error": error});
        if let Err(error) = self.deliver_message(&answer).await {
            tracing::warn!(%error, "could not report to the server that the client has left");
        }
    }

    async fn take_message(
        self: &Arc<Self>,
        message: Value,
        waiting: &mut HashMap<String, JoinHandle<()>>,
    ) {
        let in_session = self.session.lock().await.id.is_some();
        // In newer protocol versions, closing the HTTP response cancels a request.
        if !in_session && message["method"] == "notifications/cancelled" {
            if let Some(task) = waiting.remove(&message["params"]["requestId"].to_string()) {
                task.abort();
            }
            return;
        }
        let id = message["id"].clone();
        if message["method"].is_null() {
            self.questions.lock().await.open.retain(|open| *open != id);
        }
        let proxy = Arc::clone(self);
        if message["method"] == "initialize" {
            // The following messages need the session.
            proxy.exchange_message(message).await;
        } else if in_session {
            // Messages are delivered in order; responses may arrive in any order.
            match proxy.deliver_message(&message).await {
                Ok(answer) => {
                    let task =
                        tokio::spawn(async move { proxy.relay_answer(&message, answer).await });
                    waiting.insert(id.to_string(), task);
                }
                Err(error) => proxy.report_unreachable(&message, &error).await,
            }
        } else {
            let task = tokio::spawn(async move { proxy.exchange_message(message).await });
            waiting.insert(id.to_string(), task);
        }
    }

    async fn exchange_message(&self, message: Value) {
        match self.deliver_message(&message).await {
            Ok(answer) => self.relay_answer(&message, answer).await,
            Err(error) => self.report_unreachable(&message, &error).await,
        }
    }

    /// Sends a message. Starts a new session if the server has lost the old one.
    async fn deliver_message(&self, message: &Value) -> io::Result<Response> {
        let session = self.session.lock().await.clone();
        let answer = self.post_message(message, &session).await?;
        if answer.status() != StatusCode::NOT_FOUND || session.id.is_none() {
            return Ok(answer);
        }
        let Some(beginning) = session.beginning else { return Ok(answer) };
        let again = ProxySession { beginning: Some(beginning.clone()), ..ProxySession::default() };
        let begun = self.post_message(&beginning, &again).await?;
        let renewed =
            ProxySession { id: header_text(&begun, SESSION), version: session.version, ..again };
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        self.post_message(&initialized, &renewed).await?;
        *self.session.lock().await = renewed.clone();
        self.post_message(message, &renewed).await
    }

    async fn post_message(&self, message: &Value, session: &ProxySession) -> io::Result<Response> {
        let own = message["params"]["_meta"][OWN_VERSION].as_str();
        let mut request = self.remote.build_request(Method::POST);
        if let Some(version) = own.or(session.version.as_deref()) {
            request = request.header(VERSION, version);
        }
        if own.is_some() {
            let params = &message["params"];
            let name = params["name"].as_str().or(params["uri"].as_str());
            request = request.header("mcp-method", message["method"].as_str().unwrap_or_default());
            if let Some(name) = name {
                request = request.header("mcp-name", name);
            }
        } else if let Some(id) = &session.id {
            request = request.header(SESSION, id);
        }
        send_request(request.body(message.to_string())).await
    }

    /// Writes the server's response, or an error of our own if there is none.
    async fn relay_answer(&self, message: &Value, answer: Response) {
        let id = &message["id"];
        let answered = match header_text(&answer, header::CONTENT_TYPE.as_str()) {
            Some(kind) if kind.starts_with("text/event-stream") => {
                self.relay_stream(message, answer).await
            }
            _ => self.relay_single(message, answer).await,
        };
        match answered {
            Ok(true) => {}
            Ok(false) if id.is_null() => {}
            Ok(false) => self.answer_error(id, -32603, "the server gave no answer").await,
            Err(error) => self.report_unreachable(message, &error).await,
        }
    }

    async fn relay_stream(&self, message: &Value, mut answer: Response) -> io::Result<bool> {
        let session = header_text(&answer, SESSION);
        let (mut events, mut answered) = (SseDecoder::default(), false);
        while let Some(data) = next_piece(&mut answer).await? {
            for event in events.push(&data).map_err(io::Error::other)? {
                let value: Value = serde_json::from_slice(&event).map_err(io::Error::other)?;
                if value["id"] == message["id"] && value["method"].is_null() {
                    answered = true;
                    self.remember_session(message, &value, session.clone()).await;
                }
                if self.can_be_passed_on(&value).await {
                    self.write_message(&value).await;
                }
            }
        }
        Ok(answered)
    }

    async fn relay_single(&self, message: &Value, mut answer: Response) -> io::Result<bool> {
        let (status, session) = (answer.status(), header_text(&answer, SESSION));
        let mut body = Vec::new();
        while let Some(piece) = next_piece(&mut answer).await? {
            body.extend_from_slice(&piece);
            if body.len() > ANSWER {
                return Err(io::Error::other("the response is too long"));
            }
        }
        if body.is_empty() && status.is_success() {
            return Ok(false);
        }
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        if value["jsonrpc"] == "2.0" {
            self.remember_session(message, &value, session).await;
            self.write_message(&value).await;
            return Ok(true);
        }
        let said = value["message"].as_str().map_or_else(|| status.to_string(), ToOwned::to_owned);
        if message["id"].is_null() {
            tracing::warn!(said, "the server refused a notification");
        } else {
            self.answer_error(&message["id"], -32603, &format!("the server refused: {said}")).await;
        }
        Ok(true)
    }

    /// Stores the session that `initialize` established.
    async fn remember_session(&self, message: &Value, answer: &Value, id: Option<String>) {
        if message["method"] == "initialize" && !answer["result"].is_null() {
            let version = answer["result"]["protocolVersion"].as_str().map(ToOwned::to_owned);
            let beginning = Some(message.clone());
            *self.session.lock().await = ProxySession { id, version, beginning };
        }
    }

    async fn report_unreachable(&self, message: &Value, error: &io::Error) {
        tracing::warn!(%error, "the connection to the server failed");
        if !message["id"].is_null() {
            let said = format!("no answer from the server at {}: {error}", self.remote.address());
            self.answer_error(&message["id"], -32603, &said).await;
        }
    }

    async fn answer_error(&self, id: &Value, code: i32, message: &str) {
        let error = json!({"code": code, "message": message});
        self.write_message(&json!({"jsonrpc": "2.0", "id": id, "error": error})).await;
    }

    async fn write_message(&self, message: &Value) {
        let mut output = self.output.lock().await;
        let written = output.write_all(format!("{message}\n").as_bytes()).await;
        if let Err(error) = written.and(output.flush().await) {
            tracing::warn!(%error, "could not write to the client");
        }
    }

    /// Ends the session, if there is one.
    async fn end_session(&self) -> io::Result<()> {
        let session = self.session.lock().await.clone();
        let Some(id) = session.id else { return Ok(()) };
        send_request(self.remote.build_request(Method::DELETE).header(SESSION, id)).await.map(drop)
    }
}

/// Sends a request, and waits until the response begins.
async fn send_request(request: RequestBuilder) -> io::Result<Response> {
    request.send().await.map_err(to_io_error)
}

async fn next_piece(answer: &mut Response) -> io::Result<Option<Bytes>> {
    answer.chunk().await.map_err(to_io_error)
}

/// One line with all causes, without the address, which the caller names.
fn to_io_error(error: reqwest::Error) -> io::Error {
    io::Error::other(error_chain(&error.without_url()))
}

fn header_text(answer: &Response, name: &str) -> Option<String> {
    answer.headers().get(name)?.to_str().ok().map(ToOwned::to_owned)
}
