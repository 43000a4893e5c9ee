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
        Self { pipe, name, cap: cap.bytes(), kept: Captured::default(), live, ended: false }
    }

    /// Reads until the stream ends. Safe to cancel: nothing that was read is lost.
    pub(crate) async fn read(&mut self) {
        while !self.ended {
            if self.pipe.readable().await.is_err() {
                self.ended = true;
            }
            self.take(|pipe, buffer| pipe.try_read(buffer)).await;
        }
        // The stream is over; the program may not be.
        std::future::pending::<()>().await;
    }

    /// Takes what is there now, without waiting for more. Asks the kernel: the runtime may not
    /// have heard yet of what was written last.
    pub(crate) async fn drain(&mut self) {
        self.take(|pipe, buffer| Ok(rustix::io::read(pipe, buffer)?)).await;
    }

    async fn take(&mut self, read: impl Fn(&pipe::Receiver, &mut [u8]) -> io::Result<usize>) {
        let mut buffer = [0; CHUNK];
        loop {
            // Room for the chunk first: between reading it and passing it on there is no wait in
            // which it could be lost.
            let room = self.room().await;
            match read(&self.pipe, &mut buffer) {
                Ok(0) => {
                    self.ended = true;
                    return;
                }
                Ok(len) => self.keep(&buffer[..len], room),
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

    fn keep(&mut self, bytes: &[u8], live: Option<mpsc::OwnedPermit<OutputChunk>>) {
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
