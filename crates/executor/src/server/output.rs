//! Runs in: server (no capabilities). Reads what a guest prints: passes it on live, and keeps a
//! bounded part of it.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use cloche_model::{ByteSize, CapturedStream, MemoryAccount, OutputChunk, StreamName};
use tokio::{
    net::unix::pipe,
    sync::mpsc,
    time::{Instant, sleep_until},
};

/// The size of the first reads: most programs print little.
const SMALL_READ: usize = 4 << 10;
/// The size of the reads from a program that prints more: the size of a pipe.
const LARGE_READ: usize = 64 << 10;
/// The most bytes between two pauses, for a program that has printed more than is kept, and the
/// pause. The server pays for reading, not the cell: without this pace, a program that prints as
/// fast as it can costs the server most of a processor.
const FLOOD_BURST: usize = 128 << 10;
const FLOOD_PAUSE: Duration = Duration::from_millis(1);
/// How long output is left in its pipe. Most programs end within it: their output is then read
/// once, at the end, and no write of theirs wakes the server.
const LEFT_IN_PIPE: Duration = Duration::from_millis(2);

/// The read end of an output pipe.
pub(crate) enum OutputPipe {
    /// Nothing waits for it before this time.
    Unwatched(OwnedFd, Instant),
    /// The runtime reports when there is something to read.
    Watched(pipe::Receiver),
    /// It cannot be read any more.
    Closed,
}

impl OutputPipe {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Unwatched(pipe, _) => Some(pipe.as_fd()),
            Self::Watched(pipe) => Some(pipe.as_fd()),
            Self::Closed => None,
        }
    }
}

/// One output stream that is being read.
pub(crate) struct OutputCapture {
    pipe: OutputPipe,
    name: StreamName,
    cap: u64,
    kept: CapturedStream,
    /// On the heap, or it would be part of every future that waits for output.
    buffer: Box<[u8]>,
    live: Option<mpsc::Sender<OutputChunk>>,
    ended: bool,
}

impl OutputCapture {
    pub(crate) fn new(
        pipe: OwnedFd,
        name: StreamName,
        cap: ByteSize,
        live: Option<mpsc::Sender<OutputChunk>>,
    ) -> Self {
        let buffer = vec![0; SMALL_READ].into();
        let kept = CapturedStream::default();
        let pipe = OutputPipe::Unwatched(pipe, Instant::now() + LEFT_IN_PIPE);
        Self { pipe, name, cap: cap.bytes(), kept, buffer, live, ended: false }
    }

    /// Charges this account for what is kept. To be called before the first read.
    pub(crate) fn charge_to(&mut self, memory: Option<&Arc<MemoryAccount>>) {
        self.kept = CapturedStream::charged_to(memory);
    }

    /// Reads until the stream ends. Cancel-safe: nothing that was read is lost.
    pub(crate) async fn read_until_end(&mut self) {
        if let OutputPipe::Unwatched(_, watch_at) = &self.pipe {
            sleep_until(*watch_at).await;
            self.watch_pipe();
        }
        while !self.ended {
            if self.is_flooding() {
                tokio::time::sleep(FLOOD_PAUSE).await;
            }
            match &self.pipe {
                OutputPipe::Watched(pipe) if pipe.readable().await.is_ok() => {}
                _ => self.ended = true,
            }
            self.read_available().await;
        }
        // The stream has ended; the program may still run.
        std::future::pending::<()>().await;
    }

    /// Has the runtime report when there is something to read.
    fn watch_pipe(&mut self) {
        self.pipe = match std::mem::replace(&mut self.pipe, OutputPipe::Closed) {
            OutputPipe::Unwatched(pipe, _) => {
                pipe::Receiver::from_owned_fd(pipe).map_or(OutputPipe::Closed, OutputPipe::Watched)
            }
            pipe => pipe,
        };
    }

    /// Whether more was printed than is kept.
    fn is_flooding(&self) -> bool {
        self.kept.dropped > 0
    }

    /// Reads what is available without waiting for more; at most one burst of a flood.
    async fn read_available(&mut self) {
        let mut taken = 0;
        while taken < FLOOD_BURST || !self.is_flooding() {
            // The place for the chunk is reserved first. So there is no await between reading the
            // chunk and passing it on, in which it could be lost.
            let permit = self.reserve_chunk().await;
            let OutputPipe::Watched(pipe) = &self.pipe else { return };
            match pipe.try_read(&mut self.buffer) {
                Ok(0) => {
                    self.ended = true;
                    return;
                }
                Ok(len) => {
                    taken += len;
                    self.keep_chunk(len, permit);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.ended = true;
                    return;
                }
            }
        }
    }

    /// Reads the rest after the program has ended: at most as much as the pipe holds, even if a
    /// process goes on writing. Reads the pipe directly, because the runtime may not know yet about
    /// bytes that were written just before the end.
    pub(crate) async fn read_rest(&mut self) {
        let mut left = match &self.pipe {
            OutputPipe::Watched(pipe) => {
                rustix::pipe::fcntl_getpipe_size(pipe).unwrap_or(LARGE_READ)
            }
            // Its size has not been changed.
            OutputPipe::Unwatched(..) | OutputPipe::Closed => LARGE_READ,
        };
        while !self.ended && left > 0 {
            let permit = self.reserve_chunk().await;
            let most = left.min(self.buffer.len());
            let Some(pipe) = self.pipe.as_fd() else { return };
            match rustix::io::read(pipe, &mut self.buffer[..most]) {
                Ok(0) => self.ended = true,
                Ok(len) => {
                    left -= len;
                    self.keep_chunk(len, permit);
                    if len < most {
                        // That was all that the pipe had.
                        return;
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                // Nothing more now. A process that still has the other end open is not waited for.
                Err(_) => return,
            }
        }
    }

    /// Reserves a place for one chunk in the live channel; `None` without a receiver.
    async fn reserve_chunk(&mut self) -> Option<mpsc::OwnedPermit<OutputChunk>> {
        let permit = self.live.clone()?.reserve_owned().await.ok();
        if permit.is_none() {
            // The receiver was dropped. The run goes on.
            self.live = None;
        }
        permit
    }

    /// Keeps the bytes that were just read, and passes them on.
    fn keep_chunk(&mut self, len: usize, live: Option<mpsc::OwnedPermit<OutputChunk>>) {
        let was_flooding = self.is_flooding();
        let bytes = &self.buffer[..len];
        let kept = self.kept.append_within(bytes, self.cap);
        if !was_flooding && self.kept.dropped > 0 {
            // The pipe takes a whole burst, so that the program waits less often. If the kernel
            // refuses, the program is only read more slowly.
            let _ = self.pipe.as_fd().map(|it| rustix::pipe::fcntl_setpipe_size(it, FLOOD_BURST));
        }
        if let Some(live) = live {
            live.send(OutputChunk { stream: self.name, bytes: bytes.to_vec(), kept });
        }
        if len == SMALL_READ && self.buffer.len() == SMALL_READ {
            self.buffer = vec![0; LARGE_READ].into();
        }
    }

    /// What is kept, and the pipe.
    pub(crate) fn into_parts(self) -> (CapturedStream, OutputPipe) {
        (self.kept, self.pipe)
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, time::Instant};

    use super::*;

    /// Reads the output of a program that prints this many bytes and ends.
    async fn read_all(bytes: usize, cap: ByteSize) -> (CapturedStream, Duration) {
        let (ours, mut theirs) = io::pipe().unwrap();
        let pipe = OwnedFd::from(ours);
        rustix::io::ioctl_fionbio(&pipe, true).unwrap();
        let mut capture = OutputCapture::new(pipe, StreamName::Stdout, cap, None);
        let started = Instant::now();
        let program = tokio::task::spawn_blocking(move || theirs.write_all(&vec![7; bytes]));
        tokio::select! {
            () = capture.read_until_end() => {}
            written = program => written.unwrap().unwrap(),
        }
        let took = started.elapsed();
        capture.read_rest().await;
        (capture.into_parts().0, took)
    }

    #[tokio::test]
    async fn a_flood_is_counted_to_its_end_and_read_no_faster_than_the_pace() {
        const ALL: usize = 32 << 20;
        let (kept, took) = read_all(ALL, ByteSize::mib(1)).await;
        assert_eq!(kept.bytes.len(), 1 << 20);
        assert_eq!(kept.bytes.len() as u64 + kept.dropped, ALL as u64);
        // The first and the last bytes fit into the pipe without a pause.
        let bursts = (ALL - (3 << 20)) / FLOOD_BURST;
        assert!(
            took >= FLOOD_PAUSE * u32::try_from(bursts).unwrap(),
            "{took:?} for {bursts} bursts"
        );
    }
}
