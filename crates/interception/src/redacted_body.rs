//! Runs in: network broker (no capabilities).
//!
//! The body of a reply without the secrets, as it comes.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::{
    HeaderMap,
    body::{Body, Frame, Incoming},
};

use crate::{
    redaction::{SecretForms, StreamRedactor},
    request::redact_headers,
};

pub(crate) struct RedactedBody {
    inner: Incoming,
    forms: Arc<SecretForms>,
    redactor: StreamRedactor,
    /// Trailers that wait until the last bytes are out.
    trailers: Option<HeaderMap>,
    ended: bool,
}

impl RedactedBody {
    pub(crate) fn new(inner: Incoming, forms: Arc<SecretForms>) -> Self {
        let ended = inner.is_end_stream();
        Self { inner, forms, redactor: StreamRedactor::default(), trailers: None, ended }
    }

    /// What is left after the last frame of the inner body.
    fn take_rest(&mut self) -> Option<Frame<Bytes>> {
        if self.redactor.holds_any() {
            return Some(Frame::data(self.redactor.finish().into()));
        }
        self.trailers.take().map(Frame::trailers)
    }
}

impl Body for RedactedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        while !this.ended {
            let frame = match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                None => {
                    this.ended = true;
                    break;
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(chunk) => {
                    let out = this.redactor.push(&this.forms, &chunk);
                    if !out.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(out.into()))));
                    }
                }
                Err(frame) => {
                    let Ok(mut trailers) = frame.into_trailers() else { continue };
                    redact_headers(&mut trailers, &this.forms);
                    this.trailers = Some(trailers);
                    this.ended = true;
                }
            }
        }
        Poll::Ready(this.take_rest().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.ended && !self.redactor.holds_any() && self.trailers.is_none()
    }
}
