//! The stdio transport: one message per line. Invalid messages are answered here. When the client
//! closes its end, its pending requests are answered before the transport ends.

use std::{collections::HashSet, io, sync::Arc};

use parking_lot::Mutex;
use rmcp::{
    ErrorData, RoleServer,
    model::{ClientNotification, JsonRpcMessage, RequestId},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::{Notify, mpsc, oneshot},
    task::JoinHandle,
};
use tokio_util::task::AbortOnDropHandle;

use super::message::{self, InvalidJsonRpc};

/// The limit on the length of a line; the same as the default limit on an HTTP body.
const LONGEST: usize = 32 << 20;
/// How many messages may be queued in each direction.
const CHANNEL_CAPACITY: usize = 16;

/// Requests without a response yet.
#[derive(Default)]
struct PendingRequests {
    /// Requests of the client that are not answered yet.
    from_client: HashSet<RequestId>,
    /// Requests of the server that are not answered yet.
    from_server: HashSet<RequestId>,
    /// The client no longer reads.
    client_gone: bool,
}

/// An outgoing line, and a channel that is notified once it is written.
type Outgoing = (Vec<u8>, Option<oneshot::Sender<()>>);

/// Both ends of the pipe, each with its own task, so that cancelling a receive or a send cannot
/// lose part of a message.
pub(super) struct LineTransport {
    lines: mpsc::Receiver<Option<Vec<u8>>>,
    _reader: AbortOnDropHandle<()>,
    output: Option<mpsc::Sender<Outgoing>>,
    writer: Option<JoinHandle<()>>,
    /// An error response that is still to be sent.
    pending_error: Option<Value>,
    shared: Arc<TransportState>,
}

#[derive(Default)]
struct TransportState {
    pending: Mutex<PendingRequests>,
    changed: Notify,
}

impl LineTransport {
    pub(super) fn new(
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        let shared = Arc::<TransportState>::default();
        let (to_us, lines) = mpsc::channel(CHANNEL_CAPACITY);
        let (from_us, outgoing) = mpsc::channel(CHANNEL_CAPACITY);
        let reader = AbortOnDropHandle::new(tokio::spawn(read_lines(input, to_us)));
        let writer = tokio::spawn(write_lines(output, outgoing, Arc::clone(&shared)));
        Self {
            lines,
            _reader: reader,
            output: Some(from_us),
            writer: Some(writer),
            pending_error: None,
            shared,
        }
    }

    /// Sends the pending error. If cancelled, the error stays pending.
    async fn send_pending_error(&mut self) {
        if let (Some(error), Some(output)) = (&self.pending_error, &self.output) {
            let line = format!("{error}\n").into_bytes();
            if let Ok(permit) = output.reserve().await {
                permit.send((line, None));
            }
        }
        self.pending_error = None;
    }

    /// Parses a line. An invalid line sets the pending error.
    fn parse_line(&mut self, line: Option<Vec<u8>>) -> Option<RxJsonRpcMessage<RoleServer>> {
        let read = match &line {
            None => {
                let why = format!("a message must be at most {LONGEST} bytes");
                Err(InvalidJsonRpc::invalid_request(why, Value::Null))
            }
            Some(line) if line.trim_ascii().is_empty() => return None,
            Some(line) => message::parse_head(line).and_then(|head| {
                serde_json::from_slice::<RxJsonRpcMessage<RoleServer>>(line).map_err(|error| {
                    InvalidJsonRpc::from_library_error(line, head.id, &error.to_string())
                })
            }),
        };
        match read {
            Ok(message) => {
                self.shared.note_received(&message);
                Some(message)
            }
            Err(why) => {
                self.pending_error = Some(why.to_json());
                None
            }
        }
    }

    /// After the last line: waits until every pending request that can be answered has been, then
    /// returns `None`.
    async fn finish_after_eof(&self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut pending = self.shared.pending.lock();
                // A client that has left does not answer requests of the server any more.
                if let Some(id) = pending.from_server.iter().next().cloned() {
                    pending.from_server.remove(&id);
                    let gone = ErrorData::internal_error("the client has left", None);
                    return Some(JsonRpcMessage::error(gone, Some(id)));
                }
                if pending.from_client.is_empty() || pending.client_gone {
                    return None;
                }
            }
            changed.await;
        }
    }
}

impl TransportState {
    fn note_received(&self, message: &RxJsonRpcMessage<RoleServer>) {
        let mut pending = self.pending.lock();
        match message {
            JsonRpcMessage::Request(request) => pending.from_client.extend([request.id.clone()]),
            JsonRpcMessage::Response(answer) => {
                pending.from_server.remove(&answer.id);
            }
            JsonRpcMessage::Error(answer) => {
                if let Some(id) = &answer.id {
                    pending.from_server.remove(id);
                }
            }
            JsonRpcMessage::Notification(received) => {
                // The client cancelled this request, so it gets no response.
                if let ClientNotification::CancelledNotification(received) = &received.notification
                    && let Some(id) = &received.params.request_id
                {
                    pending.from_client.remove(id);
                }
            }
        }
    }

    /// The id of the request that this message answers.
    fn answered_request(message: &TxJsonRpcMessage<RoleServer>) -> Option<RequestId> {
        match message {
            JsonRpcMessage::Response(answer) => Some(answer.id.clone()),
            JsonRpcMessage::Error(answer) => answer.id.clone(),
            _ => None,
        }
    }

    fn update_pending(&self, change: impl FnOnce(&mut PendingRequests)) {
        change(&mut self.pending.lock());
        self.changed.notify_waiters();
    }
}

impl Transport<RoleServer> for LineTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (output, shared) = (self.output.clone(), Arc::clone(&self.shared));
        if let JsonRpcMessage::Request(request) = &message {
            shared.update_pending(|pending| pending.from_server.extend([request.id.clone()]));
        }
        async move {
            let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let (sent, went) = oneshot::channel();
            let output = output.ok_or_else(closed)?;
            let written = match output.send((line, Some(sent))).await {
                Ok(()) => went.await.map_err(|_| closed()),
                Err(_) => Err(closed()),
            };
            if let Some(id) = TransportState::answered_request(&message) {
                shared.update_pending(|pending| pending.from_client.retain(|asked| *asked != id));
            }
            written
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            self.send_pending_error().await;
            let Some(line) = self.lines.recv().await else { return self.finish_after_eof().await };
            if let Some(message) = self.parse_line(line) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.output = None;
        match self.writer.take() {
            Some(writer) => writer.await.map_err(io::Error::other),
            None => Ok(()),
        }
    }
}

/// Reads lines until the end; sends `None` for a line that is too long.
async fn read_lines(input: impl AsyncRead + Unpin, lines: mpsc::Sender<Option<Vec<u8>>>) {
    let mut input = BufReader::new(input);
    let (mut line, mut long) = (Vec::new(), false);
    loop {
        let (taken, ends) = match input.fill_buf().await {
            Ok([]) => break,
            Ok(bytes) => {
                let end = bytes.iter().position(|&byte| byte == b'\n');
                let piece = &bytes[..end.unwrap_or(bytes.len())];
                long |= line.len() + piece.len() > LONGEST;
                if !long {
                    line.extend_from_slice(piece);
                }
                (piece.len() + usize::from(end.is_some()), end.is_some())
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the input");
                break;
            }
        };
        input.consume(taken);
        if ends {
            let whole = std::mem::take(&mut line);
            if lines.send((!std::mem::take(&mut long)).then_some(whole)).await.is_err() {
                return;
            }
        }
    }
    // The last line may have no line end.
    if long || !line.is_empty() {
        let _ = lines.send((!long).then_some(line)).await;
    }
}

async fn write_lines(
    mut output: impl AsyncWrite + Unpin,
    mut lines: mpsc::Receiver<Outgoing>,
    shared: Arc<TransportState>,
) {
    while let Some((line, sent)) = lines.recv().await {
        let written = output.write_all(&line).await;
        if let Err(error) = written.and(output.flush().await) {
            tracing::info!(%error, "the client no longer reads");
            shared.update_pending(|pending| pending.client_gone = true);
            return;
        }
        if let Some(sent) = sent {
            // The sender may have been cancelled.
            let _ = sent.send(());
        }
    }
}
