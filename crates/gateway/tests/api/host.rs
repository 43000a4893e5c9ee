//! A server for one test, with its own port and directory. Tests use it as clients do.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use cloche_engine::{Engine, EngineConfig, LockedDataDir};
use cloche_gateway::{GatewayConfig, Server, ServerOptions};
use cloche_layers::{LayerBounds, Layers, LayersConfig, StoreConfig};
use cloche_model::ByteSize;
use cloche_store::SqliteStore;
use cloche_test_support::eventually;
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::child::Children;

/// A running server and a client with one key.
pub(crate) struct Host {
    pub(crate) address: SocketAddr,
    pub(crate) key: String,
    pub(crate) admin: String,
    /// The engine that the entry points for agents use.
    pub(crate) engine: Engine,
    client: Client,
    shutdown: CancellationToken,
    server: Option<JoinHandle<()>>,
    directory: Arc<TempDir>,
    config: EngineConfig,
    teams: u32,
}

impl Host {
    pub(crate) async fn start() -> Self {
        Self::start_with(EngineConfig::default(), GatewayConfig::default()).await
    }

    pub(crate) async fn start_with(config: EngineConfig, gateway: GatewayConfig) -> Self {
        Self::start_in(Arc::new(TempDir::new().unwrap()), config, gateway).await
    }

    async fn start_in(
        directory: Arc<TempDir>,
        config: EngineConfig,
        gateway: GatewayConfig,
    ) -> Self {
        cloche_test_support::install_crypto();
        let layers = layers(directory.path()).await;
        let mut engine = config.clone();
        engine.homes.layers = Some(layers.clone());
        let options = ServerOptions {
            data_dir: directory.path().to_owned(),
            listen: "127.0.0.1:0".to_owned(),
            gateway,
        };
        let data_dir = LockedDataDir::lock(directory.path()).unwrap();
        let store = SqliteStore::open(&directory.path().join("cloche.db")).await.unwrap();
        let dispatcher = Arc::new(Children { layers });
        let engine = Engine::open(data_dir, Arc::new(store), dispatcher, engine).await.unwrap();
        let opened = Server::open(options, engine).await.unwrap();
        let address = opened.address();
        let engine = opened.engine().clone();
        let made = opened.bootstrap().unwrap();
        let (key, admin) = (made.api_key.reveal().to_owned(), made.admin_token.reveal().to_owned());
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let server = tokio::spawn(async move { opened.run(stop).await.unwrap() });
        Self {
            address,
            key,
            admin,
            engine,
            client: Client::new(),
            shutdown,
            server: Some(server),
            directory,
            config,
            teams: 0,
        }
    }

    /// Shuts the server down, and starts another one on the same directory.
    pub(crate) async fn restart(mut self) -> Self {
        let key = self.key.clone();
        self.stop().await;
        let (directory, config) = (Arc::clone(&self.directory), self.config.clone());
        let host = Self::start_in(directory, config, GatewayConfig::default()).await;
        Self { key, ..host }
    }

    pub(crate) async fn stop(&mut self) {
        self.shutdown.cancel();
        if let Some(server) = self.server.take() {
            server.await.unwrap();
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.directory().join("cloche.db")
    }

    /// Creates a team on this plan, and switches to its key.
    pub(crate) async fn with_key(&mut self, plan: &str) -> &mut Self {
        let name = format!("team-{plan}-{}", self.teams);
        self.teams += 1;
        let made = self.admin_post("teams", json!({"name": name, "plan": plan})).await;
        let team = made["id"].as_str().unwrap().to_owned();
        self.admin_post("sandboxes", json!({"team": team, "name": "default"})).await;
        let body = json!({"team": team, "sandbox": "default", "name": "test"});
        let key = self.admin_post("keys", body).await;
        self.key = key["key"].as_str().unwrap().to_owned();
        self
    }

    pub(crate) async fn admin_post(&self, what: &str, body: Value) -> Value {
        let response = self.admin_request(Method::POST, what).json(&body).send().await.unwrap();
        assert_eq!(response.status(), 201, "{what}: {}", response.text().await.unwrap());
        response.json().await.unwrap()
    }

    pub(crate) fn admin_request(&self, method: Method, what: &str) -> RequestBuilder {
        let url = format!("http://{}/v1/admin/{what}", self.address);
        self.client.request(method, url).bearer_auth(&self.admin)
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.address)).bearer_auth(&self.key)
    }

    /// Sends a body; returns the status and the response, null if it is empty.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        let response = self.request(method, path).json(&body).send().await.unwrap();
        let status = response.status().as_u16();
        (status, serde_json::from_str(&response.text().await.unwrap()).unwrap_or_default())
    }

    /// Runs Bash in a thread; panics unless it succeeds. Returns the whole response.
    pub(crate) async fn bash(&self, thread: &str, code: &str) -> Value {
        let body = json!({"code": code, "language": "bash", "thread_id": thread});
        let (status, answer) = self.run(body).await;
        assert_eq!((status, &answer["success"]), (200, &json!(true)), "{answer}");
        answer
    }

    pub(crate) async fn post(&self, body: Value) -> Response {
        self.request(Method::POST, "/v1/sandbox/execute").json(&body).send().await.unwrap()
    }

    /// Runs a request inline; returns the status and the body.
    pub(crate) async fn run(&self, body: Value) -> (u16, Value) {
        let response = self.post(body).await;
        (response.status().as_u16(), response.json().await.unwrap())
    }

    pub(crate) async fn stream(&self, body: Value) -> Response {
        let request = self.request(Method::POST, "/v1/sandbox/execute").json(&body);
        request.header("accept", "application/x-ndjson").send().await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        let response = self.request(Method::GET, path).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// Starts a request in webhook mode; returns the trace id.
    pub(crate) async fn background(&self, body: Value) -> String {
        let request = self.request(Method::POST, "/v1/sandbox/execute").json(&body);
        let response = request.header("prefer", "respond-async").send().await.unwrap();
        assert_eq!(response.status(), 202);
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["status"], "running");
        body["trace_id"].as_str().unwrap().to_owned()
    }

    /// Polls the record until `done` returns true.
    pub(crate) async fn until(&self, trace_id: &str, done: impl Fn(&Value) -> bool) -> Value {
        eventually("the record is as it should be", async || {
            let (status, record) = self.get(&format!("/v1/executions/{trace_id}")).await;
            assert_eq!(status, 200, "{record}");
            if done(&record) { Ok(record) } else { Err(record) }
        })
        .await
    }

    pub(crate) async fn finished(&self, trace_id: &str) -> Value {
        self.until(trace_id, |record| record["status"] != "running").await
    }
}

/// The layers of a data directory.
pub(crate) async fn layers(data_dir: &Path) -> Layers {
    let config = LayersConfig {
        dir: data_dir.join("layers"),
        store: StoreConfig::Local,
        cache_bytes: ByteSize::gib(1),
        bounds: LayerBounds::default(),
    };
    Layers::open(config).await.unwrap()
}

/// The events of a complete stream.
pub(crate) fn events(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn trace_id(response: &Response) -> String {
    response.headers()["x-trace-id"].to_str().unwrap().to_owned()
}
