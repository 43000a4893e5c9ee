//! The latency that the gateway adds: the same job, which takes no time by itself, through the
//! engine and through loopback HTTP with keep-alive. Everything else is real: authentication,
//! validation, the ledger on disk.
//!
//! `cargo bench -p cloche-gateway --bench added_latency`
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark reports to a person, and a set-up that fails ends it"
)]

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use cloche_engine::{
    AdmittedRun, DispatchError, Dispatcher, DispatcherLoad, Engine, EngineConfig, LockedDataDir,
};
use cloche_gateway::{GatewayConfig, Server, ServerOptions};
use cloche_model::{
    CapturedStream, DeliveryMode, ExecuteRequest, HomeWrites, OutputChunk, RunEnding, RunOutcome,
    RunTimings, RunUsage,
};
use cloche_store::SqliteStore;
use futures::future::BoxFuture;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

const WARM_UP: usize = 500;
const RUNS: usize = 5000;

/// A dispatcher that returns immediately.
struct Instantly;

impl Dispatcher for Instantly {
    fn dispatch(
        &self,
        run: AdmittedRun,
        _: mpsc::Sender<OutputChunk>,
        _: CancellationToken,
    ) -> BoxFuture<'static, Result<RunOutcome, DispatchError>> {
        Box::pin(async move {
            drop(run.into_spec());
            Ok(RunOutcome {
                ending: RunEnding::Exited(0),
                stdout: CapturedStream::from_bytes(b"1\n".to_vec()),
                stderr: CapturedStream::default(),
                usage: RunUsage::default(),
                written: HomeWrites::default(),
                network: None,
                timings: RunTimings::default(),
            })
        })
    }

    fn check_ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn current_load(&self) -> DispatcherLoad {
        DispatcherLoad::default()
    }
}

fn report(name: &str, mut times: Vec<Duration>, whole: Duration) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 1000];
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = times.len() as f64 / whole.as_secs_f64();
    println!(
        "{name:<24} p50 {:>9.3?}   p99 {:>9.3?}   {rate:>8.0}/s   n={}",
        at(500),
        at(990),
        times.len()
    );
}

async fn through_the_engine(engine: &Engine, key: &str) {
    let mut times = Vec::new();
    let begun = Instant::now();
    for n in 0..WARM_UP + RUNS {
        let start = Instant::now();
        let caller = engine.tenancy().find_caller(key).await.unwrap();
        let request = ExecuteRequest { code: "print(1)".to_owned(), ..ExecuteRequest::default() };
        let started = engine
            .executions()
            .start_execution(&caller, request, DeliveryMode::Inline)
            .await
            .unwrap();
        started.wait_until_over().await.unwrap();
        if n >= WARM_UP {
            times.push(start.elapsed());
        }
    }
    report("engine", times, begun.elapsed());
}

/// One client with one connection.
async fn client(address: SocketAddr, key: String, runs: usize) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let body = r#"{"code": "print(1)", "language": "python", "timeout": 60}"#;
    let request = format!(
        "POST /v1/sandbox/execute HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut times = Vec::new();
    let mut buffer = vec![0; 8192];
    for _ in 0..runs {
        let start = Instant::now();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut length = 0;
        while !buffer[..length].ends_with(b"}") {
            length += stream.read(&mut buffer[length..]).await.unwrap();
        }
        assert!(buffer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&buffer));
        times.push(start.elapsed());
    }
    times
}

async fn through_http(address: SocketAddr, key: &str, clients: usize) {
    client(address, key.to_owned(), WARM_UP).await;
    let begun = Instant::now();
    let work: Vec<_> = (0..clients)
        .map(|_| tokio::spawn(client(address, key.to_owned(), RUNS / clients)))
        .collect();
    let mut times = Vec::new();
    for one in work {
        times.extend(one.await.unwrap());
    }
    report(&format!("http, {clients} at once"), times, begun.elapsed());
}

#[tokio::main]
async fn main() {
    let directory = tempfile::tempdir().unwrap();
    let options = ServerOptions {
        data_dir: directory.path().to_owned(),
        listen: "127.0.0.1:0".to_owned(),
        gateway: GatewayConfig::default(),
    };
    let data_dir = LockedDataDir::lock(directory.path()).unwrap();
    let store = SqliteStore::open(&directory.path().join("cloche.db")).await.unwrap();
    let config = EngineConfig::default();
    let engine =
        Engine::open(data_dir, Arc::new(store), Arc::new(Instantly), config).await.unwrap();
    let server = Server::open(options, engine).await.unwrap();
    let (address, engine) = (server.address(), server.engine().clone());
    let key = server.bootstrap().unwrap().api_key.reveal().to_owned();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(server.run(shutdown.clone()));
    through_the_engine(&engine, &key).await;
    for clients in [1, 8, 64] {
        through_http(address, &key, clients).await;
    }
    shutdown.cancel();
    running.await.unwrap().unwrap();
}
