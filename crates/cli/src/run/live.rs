//! Copies bytes between the guest and our own streams, on separate threads.
//!
//! A terminal that is not read, or a pipe that never ends, must delay neither the guest's deadline
//! nor our exit. So these copies do not run on the async runtime, and they are awaited only while
//! they have something to print.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::AsFd,
    thread,
};

use cloche_model::{OutputChunk, StreamName};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// How many chunks may be queued: enough to keep both sides busy, few enough to slow the guest down
/// when our reader is slow.
const QUEUED_CHUNKS: usize = 8;

/// Streams our standard input until its end. Dropping the receiver stops it.
pub(super) fn stream_stdin() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(1);
    // Without a thread the program has an empty standard input.
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
    /// The reader closed standard output before everything was written.
    OutputClosed,
}

/// The thread that prints.
pub(super) struct OutputPrinter {
    printed: oneshot::Receiver<PrintOutcome>,
}

impl OutputPrinter {
    /// Waits until everything is printed. All senders must be dropped.
    pub(super) async fn finish(self) -> PrintOutcome {
        // The thread panicked or could not be started, so nothing was printed.
        self.printed.await.unwrap_or(PrintOutcome::OutputClosed)
    }
}

/// Starts to print received chunks. If standard output is closed, the run is cancelled, as a
/// program started by hand would get SIGPIPE.
pub(super) fn start_printer(
    cancel: CancellationToken,
) -> (mpsc::Sender<OutputChunk>, OutputPrinter) {
    let (sender, chunks) = mpsc::channel(QUEUED_CHUNKS);
    let (done, printed) = oneshot::channel();
    let print = move || {
        let result = print_chunks(chunks);
        if result == PrintOutcome::OutputClosed {
            cancel.cancel();
        }
        let _ = done.send(result);
    };
    // Without a thread `finish` returns `OutputClosed`.
    let _ = thread::Builder::new().name("print".into()).spawn(print);
    (sender, OutputPrinter { printed })
}

fn print_chunks(mut chunks: mpsc::Receiver<OutputChunk>) -> PrintOutcome {
    // Files instead of `io::stdout`, which would hold back incomplete lines.
    let [stdout, stderr] = [io::stdout().as_fd(), io::stderr().as_fd()]
        .map(|fd| fd.try_clone_to_owned().map(File::from).ok());
    while let Some(chunk) = chunks.blocking_recv() {
        match chunk.stream {
            StreamName::Stdout if write_chunk(stdout.as_ref(), &chunk.bytes).is_err() => {
                return PrintOutcome::OutputClosed;
            }
            StreamName::Stdout => {}
            // A closed standard error is ignored.
            StreamName::Stderr => drop(write_chunk(stderr.as_ref(), &chunk.bytes)),
        }
    }
    PrintOutcome::Everything
}

/// Writes everything. A stream that does not exist accepts everything, like `/dev/null`.
fn write_chunk(file: Option<&File>, bytes: &[u8]) -> io::Result<()> {
    file.map_or(Ok(()), |mut file| file.write_all(bytes))
}
