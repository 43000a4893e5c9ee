//! The description against the server: requests made up from it, and every answer checked. It needs
//! `schemathesis` in `.venv`; without it this says so and is skipped.

use std::{path::Path, sync::Arc};

use cloche_engine::{Admitted, DispatchError, Dispatcher, Snapshot};
use cloche_model::{Captured, Ending, Outcome, OutputChunk, Timings, Usage};
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::host::Host;

/// Programs made up at random are better not run without walls: this only says that they were.
struct Pretend;

impl Dispatcher for Pretend {
    fn dispatch(
        &self,
        run: Admitted,
        _: mpsc::Sender<OutputChunk>,
        _: CancellationToken,
    ) -> BoxFuture<'static, Result<Outcome, DispatchError>> {
        let stdout = Captured { bytes: run.into_spec().code, dropped: 0 };
        let outcome = Outcome {
            ending: Ending::Exited(0),
            stdout,
            stderr: Captured::default(),
            usage: Usage::default(),
            timings: Timings::default(),
        };
        Box::pin(std::future::ready(Ok(outcome)))
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_does_what_its_description_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let schemathesis = root.join(".venv/bin/schemathesis");
    if !schemathesis.exists() {
        eprintln!("SKIPPED: there is no schemathesis in .venv");
        return;
    }
    let host = Host::start_on(Arc::new(Pretend)).await;
    for (token, paths) in [(&host.key, "^/(?!v1/admin)"), (&host.admin, "^/v1/admin")] {
        let status = tokio::process::Command::new(&schemathesis)
            .args(["run", &format!("http://{}/openapi.json", host.address)])
            .args([
                "--include-path-regex",
                paths,
                "--header",
                &format!("Authorization: Bearer {token}"),
            ])
            .args(["--max-examples", "20", "--seed", "1", "--generation-database", "none"])
            .current_dir(host.directory())
            .status()
            .await
            .unwrap();
        assert!(status.success());
    }
}
