//! Sidecars that are down, die, hang, send wrong data or refuse. The run ends, and another sidecar
//! takes the next.

use std::time::Duration;

use cloche_engine::{DispatchError, RemoteConfig, sidecar::JobLimits};
use cloche_model::{RunEnding, Secret};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::{
    bench::{Bench, job, limited, settings},
    executor::Sidecar,
    processes::{mark, sleepers, wait_for},
    support::{can_sandbox, eventually},
};

/// An address without a listener.
async fn unused_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// The index of the sidecar that runs something.
async fn busy(bench: &Bench) -> usize {
    eventually("a sidecar runs something", async || {
        for (index, sidecar) in bench.sidecars().iter().enumerate() {
            if sidecar.health().await["running"] == 1 {
                return Some(index);
            }
        }
        None
    })
    .await
}

fn failed(error: &DispatchError) -> bool {
    matches!(error, DispatchError::Failed(_))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_sidecar_ends_its_run_and_is_used_again_after_a_restart() {
    let (Some(one), Some(two)) = (Sidecar::start().await, Sidecar::start().await) else { return };
    let mut bench = Bench::with(vec![one, two]);
    let mark = mark();
    let mut run = bench.start(job("bash", &sleepers(&mark)));
    assert_eq!(run.chunk().await.bytes, b"up\n");
    wait_for(&mark, 2);
    let gone = bench.remove(busy(&bench).await);
    let address = gone.address();
    gone.crash();
    let error = run.until_over().await.0.unwrap_err();
    assert!(failed(&error), "{error}");
    wait_for(&mark, 0);
    for _ in 0..3 {
        assert_eq!(bench.run(job("bash", "exit 3")).await.0.ending, RunEnding::Exited(3));
    }
    bench.add(Sidecar::start_at(&address, &[]).await);
    bench.remove(0).crash();
    // Until the next health checks, the dead sidecar may be used and the new one may be skipped.
    let outcome = eventually("the new one is used", async || {
        let ended = bench.start(job("bash", "exit 4")).until_over().await.0;
        assert!(matches!(ended, Ok(_) | Err(DispatchError::Unavailable(_))), "{ended:?}");
        ended
    })
    .await;
    assert_eq!(outcome.ending, RunEnding::Exited(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_is_down_is_skipped_and_used_once_it_is_up() {
    let Some(up) = Sidecar::start().await else { return };
    let down = unused_address().await;
    let urls = vec![down.clone(), up.url.clone()];
    let bench = Bench::at(RemoteConfig { urls, ..settings() });
    for _ in 0..4 {
        assert_eq!(bench.run(job("bash", "exit 3")).await.0.ending, RunEnding::Exited(3));
    }
    bench.until_ready().await;
    let late = Sidecar::start_at(down.trim_start_matches("http://"), &[]).await;
    let mark = mark();
    // Two concurrent runs use one sidecar each, once both are known to be healthy.
    eventually("both sidecars are used", async || {
        let mut runs: Vec<_> = (0..2).map(|_| bench.start(job("bash", &sleepers(&mark)))).collect();
        for run in &mut runs {
            run.chunk().await;
        }
        let shared = late.health().await["running"] == 1 && up.health().await["running"] == 1;
        for run in runs {
            run.cancel.cancel();
            assert_eq!(run.until_over().await.0.unwrap().ending, RunEnding::Cancelled);
        }
        shared
    })
    .await;
    wait_for(&mark, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_sidecar_runs_are_refused_at_once_and_the_server_is_not_ready() {
    let urls = vec![unused_address().await, unused_address().await];
    let bench = Bench::at(RemoteConfig { urls, ..settings() });
    let error = bench.fails(job("bash", ":")).await;
    assert!(matches!(error, DispatchError::Unavailable(_)), "{error}");
    assert!(bench.ready().unwrap_err().contains("cannot be reached"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_is_reported_and_the_sidecar_is_skipped() {
    let Some(sidecar) = Sidecar::start().await else { return };
    let urls = vec![sidecar.url.clone()];
    for key in [None, Some(Secret::new("wrong"))] {
        let bench = Bench::at(RemoteConfig { urls: urls.clone(), key, ..settings() });
        let error = bench.fails(job("bash", ":")).await;
        assert!(
            matches!(&error, DispatchError::Unavailable(why) if why.contains("refuses the key")),
            "{error}"
        );
    }
    let key = Some(Secret::new("wrong"));
    let bench = Bench::at(RemoteConfig { urls, key, ..settings() });
    eventually("the dispatcher says that the key is refused", async || {
        let why = bench.ready().unwrap_err();
        if why.contains("refuses the key") { Ok(()) } else { Err(why) }
    })
    .await;
    assert!(!sidecar.log().contains("wrong"), "a key is in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_go_to_a_sidecar_with_free_places_or_are_refused() {
    let one = ["--max-concurrent-jobs", "1"];
    let (Some(a), Some(b)) = (Sidecar::start_with(&one).await, Sidecar::start_with(&one).await)
    else {
        return;
    };
    let bench = Bench::with(vec![a, b]);
    let mark = mark();
    let mut runs: Vec<_> = (0..2).map(|_| bench.start(job("bash", &sleepers(&mark)))).collect();
    for run in &mut runs {
        run.chunk().await;
    }
    for sidecar in bench.sidecars() {
        assert_eq!(sidecar.health().await["running"], 1);
    }
    let error = bench.fails(job("bash", ":")).await;
    assert!(matches!(&error, DispatchError::Unavailable(why) if why.contains("busy")), "{error}");
    for run in runs {
        run.cancel.cancel();
        run.until_over().await.0.unwrap();
    }
    assert_eq!(bench.run(job("bash", ":")).await.0.ending, RunEnding::Exited(0));
    wait_for(&mark, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_beyond_those_of_a_sidecar_are_refused_with_its_message() {
    let Some(small) =
        Sidecar::start_with(&["--max-memory", "64M", "--max-timeout-ms", "40000"]).await
    else {
        return;
    };
    let bench = Bench::with(vec![small]);
    for (limits, word) in [
        (JobLimits { memory_bytes: Some(65 << 20), ..JobLimits::default() }, "memory_bytes"),
        (JobLimits { timeout_ms: Some(40_001), ..JobLimits::default() }, "timeout"),
    ] {
        // Everything else must fit, or that would be refused first.
        let memory_bytes = limits.memory_bytes.or(Some(64 << 20));
        let timeout_ms = limits.timeout_ms.or(Some(1000));
        let limits = JobLimits { memory_bytes, timeout_ms, ..limits };
        let error = bench.fails(limited(job("bash", ":"), limits)).await;
        assert!(matches!(&error, DispatchError::Refused(why) if why.contains(word)), "{error}");
    }
}

const WELL: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";

/// A server that reports to be healthy, responds to every run with these bytes, and then stays
/// connected or closes.
pub(crate) async fn answering(bytes: &'static [u8], stays: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = vec![0; 1 << 16];
                let _ = stream.read(&mut request).await;
                if request.starts_with(b"GET") {
                    let _ = stream.write_all(WELL).await;
                    return;
                }
                let _ = stream.write_all(bytes).await;
                // The client must close first.
                while stays && stream.read(&mut request).await.is_ok_and(|read| read > 0) {}
            });
        }
    });
    url
}

macro_rules! stream_of {
    ($text:literal) => {
        concat!("HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n", $text).as_bytes()
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_hangs_or_sends_wrong_data_ends_the_run() {
    if !can_sandbox() {
        return;
    }
    let limits = JobLimits { timeout_ms: Some(500), ..JobLimits::default() };
    for (bytes, stays, word) in [
        (&b""[..], true, "no answer"),
        (b"", false, "broke the connection"),
        (stream_of!(""), true, "said nothing"),
        (stream_of!("{\"type\":\"started\",\"id\":\"trc_a\"}\n"), true, "said nothing"),
        (stream_of!("{\"type\":\"started\",\"id\":\"trc_a\"}\n"), false, "without a result"),
        (stream_of!("{\"type\":\"started\",\"id\":\"../../x\"}\n"), true, "a name that is none"),
        (stream_of!("{\"type\":\"surprise\"}\n"), true, "cannot be understood"),
        (stream_of!("[[[[[[[[\n"), true, "cannot be understood"),
        (
            stream_of!("{\"type\":\"output\",\"stream\":\"stdout\",\"data\":\"?\"}\n"),
            true,
            "symbol",
        ),
        (b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n", true, "no reason"),
    ] {
        let urls = vec![answering(bytes, stays).await];
        let (timeout, silence) = (Duration::from_secs(1), Duration::from_millis(500));
        let bench = Bench::at(RemoteConfig {
            urls,
            timeout,
            silence,
            check_every: Duration::from_secs(600),
            ..settings()
        });
        let error = bench.fails(limited(job("bash", ":"), limits)).await;
        assert!(failed(&error) && error.to_string().contains(word), "{word}: {error}");
    }
    let page = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: text/html\r\n\r\nhi";
    let urls = vec![answering(page, false).await];
    let bench = Bench::at(RemoteConfig { urls, ..settings() });
    let error = bench.fails(job("bash", ":")).await;
    assert!(
        matches!(&error, DispatchError::Unavailable(why) if why.contains("no executor does")),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_line_is_not_buffered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let sent = tokio::spawn(async move {
        let mut request = vec![0; 1 << 16];
        let mut stream = loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut request).await;
            if request.starts_with(b"POST") {
                break stream;
            }
            stream.write_all(WELL).await.unwrap();
        };
        stream.write_all(stream_of!("")).await.unwrap();
        let mut sent = 0_usize;
        while sent < 1 << 30 && stream.write_all(&[b'x'; 1 << 16]).await.is_ok() {
            sent += 1 << 16;
        }
        sent
    });
    let check_every = Duration::from_secs(600);
    let bench = Bench::at(RemoteConfig { urls: vec![url], check_every, ..settings() });
    let error = bench.fails(job("bash", ":")).await;
    assert!(error.to_string().contains("line without an end"), "{error}");
    assert!(sent.await.unwrap() < 64 << 20);
}
