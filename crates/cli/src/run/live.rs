//! Bytes between the guest and our own streams, on threads of their own.
//!
//! A terminal that is not read, or a pipe that never ends, must hold up neither the guest's
//! deadline nor our end; so nothing here runs on the runtime, and nobody waits for these threads
//! longer than they have something to do.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::AsFd,
    thread,
};

use cloche_model::{OutputChunk, StreamName};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Chunks that may be under way: enough to keep both sides busy, few enough to hold the guest
/// back when our reader is slow.
const UNDER_WAY: usize = 8;

/// Our standard input in pieces, until its end. Whoever is done with it drops it.
pub(super) fn stream_stdin() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(1);
    // Without a thread the program simply has an empty standard input.
    let _ = thread::Builder::new().name("stdin".into()).spawn(move || {
        let mut buffer = [0; 16 << 10];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut buffer) {
                Ok(len) if len > 0 => {
                    if sender.blocking_send(buffer[..len].to_vec()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    });
    receiver
}

/// How printing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrintOutcome {
    /// Everything was written.
    Everything,
    /// Standard output was closed by its reader while there was more to write.
    NobodyReads,
}

/// The thread that prints.
pub(super) struct OutputPrinter {
    printed: oneshot::Receiver<PrintOutcome>,
}

impl OutputPrinter {
    /// Waits until everything is printed, once every sender is gone.
    pub(super) async fn finish(self) -> PrintOutcome {
        // A thread that died had nobody to print to.
        self.printed.await.unwrap_or(PrintOutcome::NobodyReads)
    }
}

/// Starts printing what is sent. When nobody reads our standard output any more, the run is
/// cancelled, as a program started by hand would get SIGPIPE.
pub(super) fn start_printer(
    cancel: CancellationToken,
) -> (mpsc::Sender<OutputChunk>, OutputPrinter) {
    let (sender, chunks) = mpsc::channel(UNDER_WAY);
    let (done, printed) = oneshot::channel();
    let print = move || {
        let result = print_chunks(chunks);
        if result == PrintOutcome::NobodyReads {
            cancel.cancel();
        }
        let _ = done.send(result);
    };
    // Without a thread `finish` says that nobody reads.
    let _ = thread::Builder::new().name("print".into()).spawn(print);
    (sender, OutputPrinter { printed })
}

fn print_chunks(mut chunks: mpsc::Receiver<OutputChunk>) -> PrintOutcome {
    // As files of their own: Rust's standard output would hold back half a line.
    let [stdout, stderr] = [io::stdout().as_fd(), io::stderr().as_fd()]
        .map(|fd| fd.try_clone_to_owned().map(File::from).ok());
    while let Some(chunk) = chunks.blocking_recv() {
        match chunk.stream {
            StreamName::Stdout if write_chunk(stdout.as_ref(), &chunk.bytes).is_err() => {
                return PrintOutcome::NobodyReads;
            }
            StreamName::Stdout => {}
            // A closed standard error stops nothing.
            StreamName::Stderr => drop(write_chunk(stderr.as_ref(), &chunk.bytes)),
        }
    }
    PrintOutcome::Everything
}

/// Writes everything. A stream that we do not have takes everything, like the null device.
fn write_chunk(file: Option<&File>, bytes: &[u8]) -> io::Result<()> {
    file.map_or(Ok(()), |mut file| file.write_all(bytes))
}
