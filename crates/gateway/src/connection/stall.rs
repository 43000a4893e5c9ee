//! Runs in: server (no capabilities).
//!
//! A socket whose writes fail when the peer accepts no bytes for too long.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// A socket with a timer for stalled writes.
pub(super) struct StallGuard<S> {
    stream: S,
    patience: Duration,
    /// Runs while a write is pending.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> StallGuard<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, timer: None }
    }

    fn fail_if_stalled<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.timer = None;
            return polled;
        }
        let patience = self.patience;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(patience)));
        timer.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.fail_if_stalled(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.fail_if_stalled(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.fail_if_stalled(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.fail_if_stalled(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_write_fails_when_the_peer_does_not_read() {
        let (near, _far) = duplex(4);
        let mut guard = StallGuard::new(near, Duration::from_millis(20));
        let error = guard.write_all(&[7; 12]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_write_with_progress_resets_the_timer() {
        let (near, mut far) = duplex(4);
        let mut guard = StallGuard::new(near, Duration::from_hours(1));
        let mut taken = [0; 12];
        let (written, read) = tokio::join!(guard.write_all(&[7; 12]), far.read_exact(&mut taken));
        written.unwrap();
        read.unwrap();
        assert!(guard.timer.is_none() && taken == [7; 12]);
    }
}
