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
            self.drain().await;
        }
        // The stream is over; the program may not be.
        std::future::pending::<()>().await;
    }

    /// Takes what is there now, without waiting for more.
    pub(crate) async fn drain(&mut self) {
        let mut buffer = [0; CHUNK];
        loop {
            match self.pipe.try_read(&mut buffer) {
                Ok(0) => {
                    self.ended = true;
                    return;
                }
                Ok(len) => self.keep(&buffer[..len]).await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.ended = true;
                    return;
                }
            }
        }
    }

    async fn keep(&mut self, bytes: &[u8]) {
        let room = self.cap.saturating_sub(self.kept.bytes.len() as u64);
        let fits = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        self.kept.bytes.extend_from_slice(&bytes[..fits]);
        self.kept.dropped += (bytes.len() - fits) as u64;
        if let Some(live) = &self.live {
            let chunk = OutputChunk { stream: self.name, bytes: bytes.to_vec() };
            // Nobody listens any more: the run goes on.
            if live.send(chunk).await.is_err() {
                self.live = None;
            }
        }
    }

    pub(crate) fn into_kept(self) -> Captured {
        self.kept
    }
}
