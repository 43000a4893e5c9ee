//! Reading what a guest prints: live to whoever listens, and into a bounded head.

use std::io;

use cloche_model::{ByteSize, Captured, OutputChunk, StreamName};
use tokio::{net::unix::pipe, sync::mpsc};

/// How much is read at once: the size of a pipe.
const CHUNK: usize = 64 << 10;

/// One output stream being read.
pub(crate) struct Capture {
    pipe: pipe::Receiver,
    name: StreamName,
    cap: u64,
    kept: Captured,
    /// On the heap: it would be part of every future that waits for output.
    buffer: Box<[u8]>,
    live: Option<mpsc::Sender<OutputChunk>>,
    ended: bool,
}

impl Capture {
    pub(crate) fn new(
        pipe: pipe::Receiver,
        name: StreamName,
        cap: ByteSize,
        live: Option<mpsc::Sender<OutputChunk>>,
    ) -> Self {
        let buffer = vec![0; CHUNK].into();
        let kept = Captured::default();
        Self { pipe, name, cap: cap.bytes(), kept, buffer, live, ended: false }
    }

    /// Reads until the stream ends. Safe to cancel: nothing that was read is lost.
    pub(crate) async fn read(&mut self) {
        while !self.ended {
            if self.pipe.readable().await.is_err() {
                self.ended = true;
            }
            self.drain().await;
        }
        // The stream is over; the program may not be.
        std::future::pending::<()>().await;
    }

    /// Takes what is in the pipe when the program has ended. Asks the kernel and not the runtime,
    /// which may not have heard yet that there is something to read.
    pub(crate) async fn finish(&mut self) {
        while !self.ended {
            let room = self.room().await;
            match rustix::io::read(&self.pipe, &mut *self.buffer) {
                Ok(len @ 1..) => self.keep(len, room),
                Err(rustix::io::Errno::INTR) => {}
                // The end, or a process of the guest's still holds it: what it will write is late.
                Ok(0) | Err(_) => return,
            }
        }
    }

    /// Takes what the runtime knows to be there, without waiting for more.
    async fn drain(&mut self) {
        loop {
            // Room for the chunk first: between reading it and passing it on there is no wait in
            // which it could be lost.
            let room = self.room().await;
            match self.pipe.try_read(&mut self.buffer) {
                Ok(0) => {
                    self.ended = true;
                    return;
                }
                Ok(len) => self.keep(len, room),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.ended = true;
                    return;
                }
            }
        }
    }

    /// A place for one chunk with whoever listens; none when nobody does.
    async fn room(&mut self) -> Option<mpsc::OwnedPermit<OutputChunk>> {
        let room = self.live.clone()?.reserve_owned().await.ok();
        if room.is_none() {
            // Nobody listens any more: the run goes on.
            self.live = None;
        }
        room
    }

    /// Keeps what was just read, and passes it on.
    fn keep(&mut self, len: usize, live: Option<mpsc::OwnedPermit<OutputChunk>>) {
        let bytes = &self.buffer[..len];
        let room = self.cap.saturating_sub(self.kept.bytes.len() as u64);
        let fits = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        self.kept.bytes.extend_from_slice(&bytes[..fits]);
        self.kept.dropped += (bytes.len() - fits) as u64;
        if let Some(live) = live {
            live.send(OutputChunk { stream: self.name, bytes: bytes.to_vec() });
        }
    }

    pub(crate) fn into_kept(self) -> Captured {
        self.kept
    }
}
