//! Reading what a guest prints: live to whoever listens, and into a bounded head and tail.

use std::{io, sync::Arc, time::Duration};

use cloche_model::{ByteSize, CapturedStream, MemoryAccount, OutputChunk, StreamName};
use tokio::{net::unix::pipe, sync::mpsc};

/// How much is read at once to begin with: most programs print little.
const SMALL_READ: usize = 4 << 10;
/// How much is read at once from a program that prints more: the size of a pipe.
const LARGE_READ: usize = 64 << 10;
/// How much is read at a time of a program that has printed more than is kept, and the rest after
/// it. Reading is done at the server's expense, not the cell's: without a pace, a program that
/// prints as fast as it can costs the server most of a processor.
const FLOOD_BURST: usize = 128 << 10;
const FLOOD_PAUSE: Duration = Duration::from_millis(1);

/// One output stream being read.
pub(crate) struct OutputCapture {
    pipe: pipe::Receiver,
    name: StreamName,
    cap: u64,
    kept: CapturedStream,
    /// On the heap: it would be part of every future that waits for output.
    buffer: Box<[u8]>,
    live: Option<mpsc::Sender<OutputChunk>>,
    ended: bool,
}

impl OutputCapture {
    pub(crate) fn new(
        pipe: pipe::Receiver,
        name: StreamName,
        cap: ByteSize,
        live: Option<mpsc::Sender<OutputChunk>>,
    ) -> Self {
        let buffer = vec![0; SMALL_READ].into();
        let kept = CapturedStream::default();
        Self { pipe, name, cap: cap.bytes(), kept, buffer, live, ended: false }
    }

    /// Pays for what is kept from this account. To be called before anything is read.
    pub(crate) fn charge_to(&mut self, memory: Option<&Arc<MemoryAccount>>) {
        self.kept = CapturedStream::charged_to(memory);
    }

    /// Reads until the stream ends. Safe to cancel: nothing that was read is lost.
    pub(crate) async fn read_until_end(&mut self) {
        while !self.ended {
            if self.is_flooding() {
                tokio::time::sleep(FLOOD_PAUSE).await;
            }
            if self.pipe.readable().await.is_err() {
                self.ended = true;
            }
            self.read_available().await;
        }
        // The stream is over; the program may not be.
        std::future::pending::<()>().await;
    }

    /// Whether more was printed than is kept.
    fn is_flooding(&self) -> bool {
        self.kept.dropped > 0
    }

    /// Takes what is there now, without waiting for more; of a flood no more than a burst.
    async fn read_available(&mut self) {
        let mut taken = 0;
        while taken < FLOOD_BURST || !self.is_flooding() {
            // Room for the chunk first: between reading it and passing it on there is no wait in
            // which it could be lost.
            let room = self.reserve_chunk().await;
            match self.pipe.try_read(&mut self.buffer) {
                Ok(0) => {
                    self.ended = true;
                    return;
                }
                Ok(len) => {
                    taken += len;
                    self.keep_chunk(len, room);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.ended = true;
                    return;
                }
            }
        }
    }

    /// Takes the rest when the program is over: as much as a pipe holds, whoever goes on writing. Asks
    /// the pipe itself: the runtime may not have heard yet of what was written just before the end.
    pub(crate) async fn read_rest(&mut self) {
        let mut left = rustix::pipe::fcntl_getpipe_size(&self.pipe).unwrap_or(LARGE_READ);
        while !self.ended && left > 0 {
            let room = self.reserve_chunk().await;
            let most = left.min(self.buffer.len());
            match rustix::io::read(&self.pipe, &mut self.buffer[..most]) {
                Ok(0) => self.ended = true,
                Ok(len) => {
                    left -= len;
                    self.keep_chunk(len, room);
                }
                Err(rustix::io::Errno::INTR) => {}
                // Nothing more now: whoever still holds the other end is not waited for.
                Err(_) => return,
            }
        }
    }

    /// A place for one chunk with whoever listens; none when nobody does.
    async fn reserve_chunk(&mut self) -> Option<mpsc::OwnedPermit<OutputChunk>> {
        let room = self.live.clone()?.reserve_owned().await.ok();
        if room.is_none() {
            // Nobody listens any more: the run goes on.
            self.live = None;
        }
        room
    }

    /// Keeps what was just read, and passes it on.
    fn keep_chunk(&mut self, len: usize, live: Option<mpsc::OwnedPermit<OutputChunk>>) {
        let was_flooding = self.is_flooding();
        let bytes = &self.buffer[..len];
        let kept = self.kept.append_within(bytes, self.cap);
        if !was_flooding && self.kept.dropped > 0 {
            // Room for a burst, so that the program need not wait for each part of it. The kernel may
            // say no: the program is read more slowly then.
            let _ = rustix::pipe::fcntl_setpipe_size(&self.pipe, FLOOD_BURST);
        }
        if let Some(live) = live {
            live.send(OutputChunk { stream: self.name, bytes: bytes.to_vec(), kept });
        }
        if len == SMALL_READ && self.buffer.len() == SMALL_READ {
            self.buffer = vec![0; LARGE_READ].into();
        }
    }

    pub(crate) fn into_kept(self) -> CapturedStream {
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, time::Instant};

    use super::*;

    /// Reads what a program prints that prints this much and ends.
    async fn read_all(bytes: usize, cap: ByteSize) -> (CapturedStream, Duration) {
        let (ours, mut theirs) = io::pipe().unwrap();
        let pipe = pipe::Receiver::from_owned_fd(ours.into()).unwrap();
        let mut capture = OutputCapture::new(pipe, StreamName::Stdout, cap, None);
        let started = Instant::now();
        let program = tokio::task::spawn_blocking(move || theirs.write_all(&vec![7; bytes]));
        tokio::select! {
            () = capture.read_until_end() => {}
            written = program => written.unwrap().unwrap(),
        }
        let took = started.elapsed();
        capture.read_rest().await;
        (capture.into_kept(), took)
    }

    #[tokio::test]
    async fn a_flood_is_counted_to_its_end_and_read_no_faster_than_its_pace() {
        const ALL: usize = 32 << 20;
        let (kept, took) = read_all(ALL, ByteSize::mib(1)).await;
        assert_eq!(kept.bytes.len(), 1 << 20);
        assert_eq!(kept.bytes.len() as u64 + kept.dropped, ALL as u64);
        // Some fit into the pipe at the beginning and at the end.
        let bursts = (ALL - (3 << 20)) / FLOOD_BURST;
        assert!(
            took >= FLOOD_PAUSE * u32::try_from(bursts).unwrap(),
            "{took:?} for {bursts} bursts"
        );
    }
}
