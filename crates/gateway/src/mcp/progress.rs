//! Lines of output as progress, for clients that asked for it. Bounded: whoever prints without end
//! is told of it in the result.

use cloche_engine::{Event, EventKind, Reader};
use rmcp::{
    Peer, RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::RequestContext,
};

use super::inert::{Stream, shown};

/// The most lines that are sent while the code runs.
const LINES: u32 = 1000;
/// The most bytes of a line.
const LINE: usize = 2048;

/// Tells one client how one call gets on.
pub(super) struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    sent: u32,
    inert: bool,
}

impl Progress {
    /// `None` if the client did not ask.
    pub(super) fn wanted(context: &RequestContext<RoleServer>, inert: bool) -> Option<Self> {
        let token = context.meta.get_progress_token()?;
        Some(Self { peer: context.peer.clone(), token, sent: 0, inert })
    }

    /// Passes on lines until the execution is over or the client has had enough.
    pub(super) async fn follow(&mut self, mut events: Reader) {
        while let Some(batch) = events.next().await {
            for event in batch {
                if !self.pass_on(event).await {
                    return;
                }
            }
        }
    }

    async fn pass_on(&mut self, event: Event) -> bool {
        let EventKind::Output(_, line) = event.kind else { return true };
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        match self.sent {
            LINES => {
                self.say("more output is in the result".to_owned()).await;
                false
            }
            _ => self.say(shown(Stream::whole(line), LINE, self.inert).text).await,
        }
    }

    /// Says something; false if nobody listens any more.
    pub(super) async fn say(&mut self, message: String) -> bool {
        self.sent += 1;
        let said = ProgressNotificationParam::new(self.token.clone(), f64::from(self.sent));
        self.peer.notify_progress(said.with_message(message)).await.is_ok()
    }
}
