//! Reading what a guest prints: live to whoever listens, and into a bounded head and tail.

use std::{io, sync::Arc};

use cloche_model::{ByteSize, Captured, MemoryAccount, OutputChunk, StreamName};
use tokio::{net::unix::pipe, sync::mpsc};

/// How much is read at once to begin with: most programs print little.
const LITTLE: usize = 4 << 10;
/// How much is read at once from a program that prints more: the size of a pipe.
const MUCH: usize = 64 << 10;

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
        let buffer = vec![0; LITTLE].into();
        let kept = Captured::default();
        Self { pipe, name, cap: cap.bytes(), kept, buffer, live, ended: false }
    }

    /// Pays for what is kept from this account. To be called before anything is read.
    pub(crate) fn charge_to(&mut self, memory: Option<&Arc<MemoryAccount>>) {
        self.kept = Captured::charged_to(memory);
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

    /// Takes what is there now, without waiting for more.
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

    /// Takes the rest when the program is over: as much as a pipe holds, whoever goes on writing. Asks
    /// the pipe itself: the runtime may not have heard yet of what was written just before the end.
    pub(crate) async fn rest(&mut self) {
        let mut left = rustix::pipe::fcntl_getpipe_size(&self.pipe).unwrap_or(MUCH);
        while !self.ended && left > 0 {
            let room = self.room().await;
            let most = left.min(self.buffer.len());
            match rustix::io::read(&self.pipe, &mut self.buffer[..most]) {
                Ok(0) => self.ended = true,
                Ok(len) => {
                    left -= len;
                    self.keep(len, room);
                }
                Err(rustix::io::Errno::INTR) => {}
                // Nothing more now: whoever still holds the other end is not waited for.
                Err(_) => return,
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
        let kept = self.kept.keep(bytes, self.cap);
        if let Some(live) = live {
            live.send(OutputChunk { stream: self.name, bytes: bytes.to_vec(), kept });
        }
        if len == LITTLE && self.buffer.len() == LITTLE {
            self.buffer = vec![0; MUCH].into();
        }
    }

    pub(crate) fn into_kept(self) -> Captured {
        self.kept
    }
}
