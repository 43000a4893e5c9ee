//! A server for one test: the real binary with its own port and directory. Dropping it removes
//! everything.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
};

pub(crate) use cloche_test_support::PATIENCE;
use cloche_test_support::eventually;
use reqwest::{Client, Method, RequestBuilder, Response};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    processes::{below, wait_until_gone},
    support::{binary, can_sandbox},
};

/// The environment variable with the key of the model server of these tests, and the key.
pub(crate) const MODEL_KEY: (&str, &str) = ("CLOCHE_TEST_MODEL_KEY", "mk-test-5f2a9c");

/// A running server and the client of one key.
pub(crate) struct Host {
    pub(crate) url: String,
    pub(crate) key: String,
    pub(crate) admin: String,
    client: Client,
    server: Child,
    directory: Arc<TempDir>,
    arguments: Vec<String>,
}

impl Host {
    /// A server with default settings. `None` if no sandbox can be built.
    pub(crate) async fn start() -> Option<Self> {
        Self::start_with(&[]).await
    }

    /// A server with further arguments.
    pub(crate) async fn start_with(arguments: &[&str]) -> Option<Self> {
        Self::start_with_env(arguments, &[]).await
    }

    /// A server with further arguments and environment variables.
    pub(crate) async fn start_with_env(
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Option<Self> {
        if !can_sandbox() {
            return None;
        }
        let directory = Arc::new(TempDir::new().unwrap());
        let arguments = arguments.iter().map(ToString::to_string).collect();
        Some(Self::start_in(directory, arguments, variables).await)
    }

    /// A server whose data directory is in this one.
    pub(crate) async fn start_on(directory: Arc<TempDir>, arguments: Vec<String>) -> Self {
        Self::start_in(directory, arguments, &[]).await
    }

    async fn start_in(
        directory: Arc<TempDir>,
        arguments: Vec<String>,
        variables: &[(&str, &str)],
    ) -> Self {
        cloche_test_support::install_crypto();
        let file = |name: &str| File::create(directory.path().join(name)).unwrap();
        let chosen = arguments.iter().any(|argument| argument == "--listen");
        let listen = if chosen { &[][..] } else { &["--listen", "127.0.0.1:0"] };
        let mut server = Command::new(binary())
            .args(["serve", "--data-dir"])
            .arg(directory.path().join("data"))
            .args(listen)
            .args(&arguments)
            .env(MODEL_KEY.0, MODEL_KEY.1)
            .envs(variables.iter().copied())
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("log"))
            .spawn()
            .unwrap();
        let said = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        eventually("the server prints its greeting", async || {
            let ended = server.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?} {}", said("log"));
            said("stdout").contains("Try it").then_some(()).ok_or_else(|| said("log"))
        })
        .await;
        let text = fs::read(directory.path().join("data/bootstrap.json")).unwrap();
        let bootstrap: Value = serde_json::from_slice(&text).unwrap();
        let text = |name: &str| bootstrap[name].as_str().unwrap().to_owned();
        let host = Self {
            url: text("url"),
            key: text("api_key"),
            admin: text("admin_token"),
            client: client_of(&text("url")),
            server,
            directory,
            arguments,
        };
        host.wait_until_ready().await;
        host
    }

    async fn wait_until_ready(&self) {
        eventually("the server is ready", async || {
            let answer = self.client.get(format!("{}/readyz", self.url)).send().await;
            let is_ready = answer.is_ok_and(|answer| answer.status() == 200);
            is_ready.then_some(()).ok_or_else(|| self.said("log"))
        })
        .await;
    }

    /// Starts another server on the directory of one that has ended.
    pub(crate) async fn again(mut self) -> Self {
        let ended = self.server.try_wait().unwrap();
        assert!(ended.is_some(), "the first one is still there");
        let key = self.key.clone();
        let next = Self::start_in(Arc::clone(&self.directory), self.arguments.clone(), &[]).await;
        next.with_key(key)
    }

    /// Stops the server and starts another on its directory, with these environment variables.
    pub(crate) async fn stop_and_start(mut self, variables: &[(&str, &str)]) -> Self {
        if self.server.try_wait().unwrap().is_none() {
            self.signal(Signal::TERM);
        }
        self.ended().await;
        let (directory, arguments) = (Arc::clone(&self.directory), self.arguments.clone());
        Self::start_in(directory, arguments, variables).await.with_key(self.key.clone())
    }

    /// Restarts the server with other arguments.
    pub(crate) async fn restart_with(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
        self.stop_and_start(&[]).await
    }

    pub(crate) fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = key.into();
        self
    }

    pub(crate) fn pid(&self) -> u32 {
        self.server.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until the process has ended.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        eventually("the server has ended", async || {
            self.server.try_wait().unwrap().ok_or_else(|| self.said("log"))
        })
        .await
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The content of `stdout` or of its `log`.
    pub(crate) fn said(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap()
    }

    pub(crate) fn admin_request(&self, method: Method, what: &str) -> RequestBuilder {
        self.client
            .request(method, format!("{}/v1/admin/{what}", self.url))
            .bearer_auth(&self.admin)
    }

    /// All metrics, as an operator reads them.
    pub(crate) async fn metrics(&self) -> String {
        let request = self.client.get(format!("{}/metrics", self.url)).bearer_auth(&self.admin);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.text().await.unwrap()
    }

    pub(crate) async fn admin_json(&self, method: Method, what: &str, body: Value) -> Value {
        let response = self.admin_request(method, what).json(&body).send().await.unwrap();
        let status = response.status();
        let text = response.text().await.unwrap();
        assert!(status.is_success(), "{what}: {status} {text}");
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.key)
    }

    pub(crate) fn execute(&self, body: &Value) -> RequestBuilder {
        self.request(Method::POST, "/v1/sandbox/execute").json(body)
    }

    /// Runs inline. Returns the status and the body.
    pub(crate) async fn run(&self, body: Value) -> (u16, Value) {
        let response = self.execute(&body).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    pub(crate) async fn stream(&self, body: Value) -> Response {
        let request = self.execute(&body).header("accept", "application/x-ndjson");
        request.send().await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        let response = self.request(Method::GET, path).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    pub(crate) async fn cancel(&self, trace_id: &str) -> Value {
        let path = format!("/v1/executions/{trace_id}/cancel");
        self.request(Method::POST, &path).send().await.unwrap().json().await.unwrap()
    }

    /// Starts in webhook mode. Returns the trace id.
    pub(crate) async fn background(&self, body: Value) -> String {
        let request = self.execute(&body).header("prefer", "respond-async");
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 202);
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["status"], json!("running"));
        body["trace_id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn record(&self, trace_id: &str) -> Value {
        let (status, record) = self.get(&format!("/v1/executions/{trace_id}")).await;
        assert_eq!(status, 200, "{record}");
        record
    }

    /// Polls until the record satisfies the condition.
    pub(crate) async fn until(&self, trace_id: &str, done: impl Fn(&Value) -> bool) -> Value {
        eventually("the record is as it should be", async || {
            let record = self.record(trace_id).await;
            if done(&record) { Ok(record) } else { Err(record) }
        })
        .await
    }

    pub(crate) async fn finished(&self, trace_id: &str) -> Value {
        self.until(trace_id, |record| record["status"] != "running").await
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.server.try_wait().is_ok_and(|ended| ended.is_none()) {
            let processes = below(self.pid());
            let _ = self.server.kill();
            let _ = self.server.wait();
            if !std::thread::panicking() {
                wait_until_gone(&processes);
            }
        }
    }
}

/// A client of the server at this address. Whether a certificate is good is for other tests.
fn client_of(url: &str) -> Client {
    let is_tls = url.starts_with("https:");
    Client::builder().danger_accept_invalid_certs(is_tls).build().unwrap()
}

/// The events of a whole stream.
pub(crate) fn events(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn trace_id(response: &Response) -> String {
    response.headers()["x-trace-id"].to_str().unwrap().to_owned()
}
