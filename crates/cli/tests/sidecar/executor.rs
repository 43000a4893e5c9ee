//! A sidecar for one test: the real binary with its own port. Dropping it removes everything.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use reqwest::{Client, RequestBuilder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    processes::{below, wait_until_gone},
    support::{binary, can_sandbox, eventually},
};

pub(crate) const KEY: &str = "correct horse";

/// A running sidecar.
pub(crate) struct Sidecar {
    pub(crate) url: String,
    client: Client,
    process: Child,
    directory: TempDir,
}

impl Sidecar {
    /// With default settings. `None` if no sandbox can be built.
    pub(crate) async fn start() -> Option<Self> {
        Self::start_with(&[]).await
    }

    /// With further arguments.
    pub(crate) async fn start_with(arguments: &[&str]) -> Option<Self> {
        if !can_sandbox() {
            return None;
        }
        Some(Self::start_at("127.0.0.1:0", arguments).await)
    }

    /// A sidecar without a key.
    pub(crate) async fn start_without_key() -> Option<Self> {
        if !can_sandbox() {
            return None;
        }
        Some(Self::start_without_key_at("127.0.0.1:0").await)
    }

    pub(crate) async fn start_without_key_at(listen: &str) -> Self {
        Self::start_without_key_at_with(listen, &[]).await
    }

    pub(crate) async fn start_without_key_at_with(listen: &str, arguments: &[&str]) -> Self {
        Self::begin(listen, arguments, ("SANDBOX_EXECUTOR_ENVIRONMENT", "test")).await
    }

    /// A sidecar without a key that shares the layers in this directory.
    pub(crate) async fn start_sharing(store: &Path) -> Option<Self> {
        let store = store.to_str().unwrap();
        Self::start_without_key_with(&["--layers-dir", store]).await
    }

    /// A sidecar without a key, with further arguments.
    pub(crate) async fn start_without_key_with(arguments: &[&str]) -> Option<Self> {
        if !can_sandbox() {
            return None;
        }
        Some(Self::start_without_key_at_with("127.0.0.1:0", arguments).await)
    }

    /// On this address.
    pub(crate) async fn start_at(listen: &str, arguments: &[&str]) -> Self {
        Self::begin(listen, arguments, ("SANDBOX_EXECUTOR_SERVICE_API_KEY", KEY)).await
    }

    async fn begin(listen: &str, arguments: &[&str], variable: (&str, &str)) -> Self {
        cloche_test_support::install_crypto();
        let directory = TempDir::new().unwrap();
        let file = |name: &str| File::create(directory.path().join(name)).unwrap();
        let mut process = command()
            .env(variable.0, variable.1)
            // The bucket of these tests takes any key.
            .envs([("AWS_ACCESS_KEY_ID", "any"), ("AWS_SECRET_ACCESS_KEY", "any")])
            .args(["--listen", listen, "--data-dir"])
            .arg(directory.path().join("data"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("log"))
            .spawn()
            .unwrap();
        let said = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        let url = eventually("the sidecar prints its address", async || {
            let ended = process.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?} {}", said("log"));
            let greeting = said("stdout");
            let url = greeting.strip_suffix('\n').and_then(|line| line.split_once("listening on "));
            url.map(|(_, url)| url.to_owned()).ok_or_else(|| said("log"))
        })
        .await;
        Self { url, client: Client::new(), process, directory }
    }

    /// The address without the scheme.
    pub(crate) fn address(&self) -> String {
        self.url.trim_start_matches("http://").to_owned()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    pub(crate) fn request(&self, method: reqwest::Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url))
    }

    /// `POST /execute` with the key.
    pub(crate) fn post(&self, body: &Value) -> RequestBuilder {
        let request = self.request(reqwest::Method::POST, "/execute");
        request.header("X-Service-API-Key", KEY).json(body)
    }

    /// Runs a job. Returns the status and the body.
    pub(crate) async fn run(&self, body: Value) -> (u16, Value) {
        let response = self.post(&body).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    pub(crate) async fn health(&self) -> Value {
        let request = self.request(reqwest::Method::GET, "/healthz");
        request.send().await.unwrap().json().await.unwrap()
    }

    /// Jobs that are over, of any language and with any result.
    pub(crate) async fn jobs_over(&self) -> u64 {
        let text = self.metrics().await;
        let counts = text.lines().filter(|line| line.starts_with("sandbox_executor_jobs_total{"));
        counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    }

    pub(crate) async fn metrics(&self) -> String {
        let request = self.request(reqwest::Method::GET, "/metrics");
        request.send().await.unwrap().text().await.unwrap()
    }

    /// Waits until this many jobs run.
    pub(crate) async fn until_running(&self, wanted: u64) {
        eventually(format!("{wanted} jobs run"), async || {
            let is_so = self.health().await["running"] == wanted;
            is_so.then_some(()).ok_or_else(|| self.log())
        })
        .await;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Kills it as a crash would, and waits until it is gone.
    pub(crate) fn crash(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let processes = below(self.process.id());
        let _ = self.process.kill();
        let _ = self.process.wait();
        if !std::thread::panicking() {
            wait_until_gone(&processes);
        }
    }

    /// Waits until the process has ended by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        eventually("the sidecar has ended", async || {
            self.process.try_wait().unwrap().ok_or_else(|| self.log())
        })
        .await
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.end();
        }
    }
}

/// `cloche executor` without settings of our own environment.
pub(crate) fn command() -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SANDBOX_EXECUTOR") {
            command.env_remove(name);
        }
    }
    command.arg("executor");
    command
}
