//! Runs in: stack worker (no capabilities).
//!
//! The end of a connection: by itself, or because the run has used up its bytes.

use std::io;

use cloche_model::{DenialReason, NetworkProtocol};

use super::StackWorker;
use crate::protocol::{FlowId, WorkerMessage};

impl StackWorker {
    /// A connection is over: its place is free.
    pub(super) fn forget_connection(&mut self, id: FlowId) -> io::Result<()> {
        if let Some(connection) = self.connections.remove(&id) {
            self.by_flow.remove(&connection.flow);
            self.buffers.give_back(connection.send_buffer);
            self.link.send(&WorkerMessage::Gone { id })?;
        }
        Ok(())
    }

    /// The bytes of the run are used up: every connection is reset, once the guest has what was
    /// counted.
    pub(super) fn end_for_quota(&mut self) -> io::Result<()> {
        let done =
            self.connections.iter_mut().filter_map(|(id, c)| (!c.has_unsent()).then_some(*id));
        let ids: Vec<FlowId> = done.collect();
        for id in ids {
            let now = self.stack_now();
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.reset(now, self.stacks.of(&connection.flow), &mut self.device);
                let (remote, limit) = (connection.flow.remote, DenialReason::LimitReached);
                self.report_denial(remote, NetworkProtocol::Tcp, limit)?;
            }
            self.forget_connection(id)?;
        }
        Ok(())
    }
}
