//! A dispatcher for these tests: each program is a plain child process in a temporary directory. It
//! has no walls; the walls are tested in the crates that build them.

use std::{process::Stdio, time::Instant};

use cloche_engine::{AdmittedRun, DispatchError, Dispatcher, DispatcherLoad};
use cloche_layers::Layers;
use cloche_model::{
    ByteSize, CapturedStream, OutputChunk, RunEnding, RunOutcome, RunTimings, RunUsage, StreamName,
};
use futures::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use crate::home::Home;

pub(crate) struct Children {
    pub(crate) layers: Layers,
}

impl Dispatcher for Children {
    /// The programs run on the host, whose network they have anyway.
    fn check_network(&self) -> Result<(), String> {
        Ok(())
    }

    fn dispatch(
        &self,
        run: AdmittedRun,
        output: mpsc::Sender<OutputChunk>,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<RunOutcome, DispatchError>> {
        let layers = self.layers.clone();
        Box::pin(async move {
            let failed = |error: std::io::Error| DispatchError::Failed(error.to_string());
            run_child(run, &layers, output, cancel).await.map_err(failed)
        })
    }

    fn check_ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn current_load(&self) -> DispatcherLoad {
        DispatcherLoad::default()
    }
}

async fn run_child(
    run: AdmittedRun,
    layers: &Layers,
    output: mpsc::Sender<OutputChunk>,
    cancel: CancellationToken,
) -> std::io::Result<RunOutcome> {
    let spec = run.into_spec();
    if spec.code == b"raise SystemError('no executor')" {
        return Err(std::io::Error::other("no executor"));
    }
    let main_file = spec.language.main_file();
    let home = Home::fill(layers, spec.home.as_ref()).await;
    for file in &spec.files {
        home.put(file.name.as_str(), &file.content);
    }
    home.put(main_file, &spec.code);
    let before = home.contents();
    let main = home.path().join(main_file);
    let started = Instant::now();
    let mut child = Command::new(spec.language.interpreter())
        .arg(&main)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home.path())
        .envs(&spec.env)
        .current_dir(home.path())
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read its input may have exited already.
        let _ = stdin.write_all(&spec.stdin).await;
    }
    let cap = spec.limits.output.bytes();
    let stdout = capture(StreamName::Stdout, child.stdout.take(), output.clone(), cap);
    let stderr = capture(StreamName::Stderr, child.stderr.take(), output, cap);
    let deadline = tokio::time::sleep(spec.limits.timeout);
    let ending = tokio::select! {
        status = child.wait() => ending(status?),
        () = deadline => kill_group(&mut child, RunEnding::TimedOut).await,
        () = cancel.cancelled() => kill_group(&mut child, RunEnding::Cancelled).await,
    };
    let usage =
        RunUsage { wall: started.elapsed(), peak_memory: ByteSize::mib(1), ..RunUsage::default() };
    let (stdout, stderr) = (stdout.await.unwrap_or_default(), stderr.await.unwrap_or_default());
    let written = home.seal(layers, main_file, &before).await;
    Ok(RunOutcome {
        ending,
        stdout,
        stderr,
        usage,
        written,
        network: None,
        timings: RunTimings::default(),
    })
}

fn ending(status: std::process::ExitStatus) -> RunEnding {
    use std::os::unix::process::ExitStatusExt;
    match status.code() {
        Some(code) => RunEnding::Exited(u8::try_from(code & 255).unwrap_or(255)),
        None => RunEnding::Signalled(u8::try_from(status.signal().unwrap_or(9)).unwrap_or(9)),
    }
}

async fn kill_group(child: &mut Child, ending: RunEnding) -> RunEnding {
    if let Some(pid) = child.id() {
        let group = format!("-{pid}");
        let _ = Command::new("kill").args(["-9", "--", &group]).status().await;
    }
    let _ = child.wait().await;
    ending
}

fn capture<R: AsyncRead + Unpin + Send + 'static>(
    stream: StreamName,
    pipe: Option<R>,
    output: mpsc::Sender<OutputChunk>,
    cap: u64,
) -> tokio::task::JoinHandle<CapturedStream> {
    tokio::spawn(async move {
        let mut captured = CapturedStream::default();
        let Some(mut pipe) = pipe else { return captured };
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
            let kept = captured.append_within(&buffer[..length], cap);
            let bytes = buffer[..length].to_vec();
            let _ = output.send(OutputChunk { stream, bytes, kept }).await;
        }
        captured
    })
}
