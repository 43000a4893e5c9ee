//! A body that is too large for memory. It is read piece by piece, and abandoned when the next
//! piece does not arrive in time or the rate is too low.

use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::StatusCode,
};
use cloche_engine::Refusal;
use futures::{StreamExt, stream, stream::BoxStream};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio_util::io::StreamReader;

use crate::{GatewayConfig, error::ApiError, pace::BodyPace};

/// How much of a refused body is read and discarded, and for how long. A connection closed while
/// bytes arrive is reset, and the client would lose the response.
const MOST_DRAINED: u64 = 64 << 20;
const LONGEST_DRAIN: Duration = Duration::from_secs(5);

type Pieces = StreamReader<BoxStream<'static, io::Result<Bytes>>, Bytes>;

/// The bytes of a body as they arrive.
pub(crate) struct StreamedBody {
    /// Taken on drop.
    reader: Option<Pieces>,
    is_over: bool,
}

impl Drop for StreamedBody {
    fn drop(&mut self) {
        let Some(reader) = self.reader.take().filter(|_| !self.is_over) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(discard_rest(reader));
        }
    }
}

/// Discards what still arrives of a refused body.
async fn discard_rest(reader: Pieces) {
    let mut rest = reader.take(MOST_DRAINED);
    let mut nowhere = tokio::io::sink();
    let _ = tokio::time::timeout(LONGEST_DRAIN, tokio::io::copy(&mut rest, &mut nowhere)).await;
}

/// The status of a body. The reader itself cannot tell a client that left from a disk that failed.
#[derive(Clone, Default)]
pub(crate) struct BodyStatus(Arc<OnceLock<io::ErrorKind>>);

impl StreamedBody {
    pub(crate) fn new(body: Body, config: &GatewayConfig) -> (Self, BodyStatus) {
        let status = BodyStatus::default();
        let pace = BodyPace::new(config.body_timeout, config.body_rate);
        let pieces = stream::unfold((body.into_data_stream(), status.clone(), pace), next_piece);
        (Self { reader: Some(StreamReader::new(pieces.boxed())), is_over: false }, status)
    }
}

type BodyStreamState = (axum::body::BodyDataStream, BodyStatus, BodyPace);

async fn next_piece(
    (mut body, status, mut pace): BodyStreamState,
) -> Option<(io::Result<Bytes>, BodyStreamState)> {
    let piece = match pace.wait_for(body.next()).await {
        Ok(None) => return None,
        Ok(Some(Ok(piece))) => {
            pace.count_received(piece.len());
            Ok(piece)
        }
        Ok(Some(Err(error))) => Err(io::Error::other(error)),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    };
    if let Err(error) = &piece {
        let _ = status.0.set(error.kind());
    }
    Some((piece, (body, status, pace)))
}

impl AsyncRead for StreamedBody {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let Some(reader) = &mut self.reader else { return Poll::Ready(Ok(())) };
        let read = Pin::new(reader).poll_read(context, buffer);
        let failed = matches!(read, Poll::Ready(Err(_)));
        let ended = read.is_ready() && buffer.filled().len() == before && buffer.remaining() > 0;
        self.is_over |= failed || ended;
        read
    }
}

impl BodyStatus {
    /// Returns the result, or the client's error if the body caused the refusal.
    pub(crate) fn or_client_error<T>(&self, result: Result<T, Refusal>) -> Result<T, ApiError> {
        let refusal = match result {
            Ok(value) => return Ok(value),
            Err(refusal) => refusal,
        };
        Err(match self.0.get() {
            None => refusal.into(),
            Some(io::ErrorKind::TimedOut) => {
                let message = "the body did not arrive in time".to_owned();
                ApiError::Http(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
            }
            Some(_) => {
                let message = "the body could not be read to its end".to_owned();
                ApiError::Http(StatusCode::BAD_REQUEST, "validation_error", message)
            }
        })
    }
}
