//! Lines of output as progress notifications, for clients that request them. Their number is
//! limited; the result has the rest.

use cloche_engine::{EventLogReader, ExecutionEvent, ExecutionEventKind};
use rmcp::{
    Peer, RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::RequestContext,
};

use super::shown_output::{StreamExcerpt, show_output};

/// The limit on lines sent while the code runs.
const MAX_LINES: u32 = 1000;
/// The limit on bytes of a line.
const MAX_LINE_BYTES: usize = 2048;

/// Sends progress notifications for one call.
pub(super) struct ProgressReporter {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    sent: u32,
    inert: bool,
}

impl ProgressReporter {
    /// `None` if the client did not request progress.
    pub(super) fn from_context(context: &RequestContext<RoleServer>, inert: bool) -> Option<Self> {
        let token = context.meta.get_progress_token()?;
        Some(Self { peer: context.peer.clone(), token, sent: 0, inert })
    }

    /// Forwards lines until the execution has ended or the limit is reached.
    pub(super) async fn forward_events(&mut self, mut events: EventLogReader) {
        while let Ok(Some(batch)) = events.next().await {
            for event in batch {
                if !self.forward_event(event).await {
                    return;
                }
            }
        }
    }

    async fn forward_event(&mut self, event: ExecutionEvent) -> bool {
        let ExecutionEventKind::Output(_, line) = event.kind else { return true };
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        match self.sent {
            MAX_LINES => {
                self.send_message("further output is in the result".to_owned()).await;
                false
            }
            _ => self.send_message(format_line(line, self.inert)).await,
        }
    }

    /// Sends a notification; returns false if the client no longer listens.
    pub(super) async fn send_message(&mut self, message: String) -> bool {
        self.sent += 1;
        let notification = ProgressNotificationParam::new(self.token.clone(), f64::from(self.sent));
        self.peer.notify_progress(notification.with_message(message)).await.is_ok()
    }
}

/// A line as a message. A long one is cut, and says by how much.
fn format_line(line: &[u8], inert: bool) -> String {
    let shown = show_output(StreamExcerpt::from_all_bytes(line), MAX_LINE_BYTES, inert);
    match shown.left_out {
        0 => shown.text,
        bytes => format!("{} [... {bytes} bytes left out]", shown.text),
    }
}
