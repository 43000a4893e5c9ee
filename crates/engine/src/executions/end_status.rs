//! Runs in: server (no capabilities).
//!
//! How an execution ended, in the words of the contract. Does not know the ledger or who reads it.

use cloche_model::{
    DisplaySeconds, ExecutionStatus, NetworkReport, RunEnding, RunLimits, RunOutcome,
};

use super::StopCause;

/// How it ended, in the words of the contract.
pub(super) struct EndStatus {
    pub(super) status: ExecutionStatus,
    pub(super) exit_code: i32,
    pub(super) error: Option<String>,
}

impl EndStatus {
    /// A program that failed by itself may have failed for want of what its network denied, or for
    /// want of a network that was lost.
    pub(super) fn blame_network(&mut self, network: &NetworkReport) {
        if self.status != ExecutionStatus::Failed || self.error.is_some() {
            return;
        }
        if let Some(lost) = &network.lost {
            self.error = Some(lost.clone());
        } else if !network.denied.is_empty() {
            self.status = ExecutionStatus::Blocked;
        }
    }
}

/// The status of a run that has an outcome.
pub(super) fn end_status(
    outcome: &RunOutcome,
    limits: &RunLimits,
    stopped_by: Option<StopCause>,
) -> EndStatus {
    let plain = |status, exit_code| EndStatus { status, exit_code, error: None };
    match outcome.ending {
        RunEnding::Exited(0) => plain(ExecutionStatus::Success, 0),
        RunEnding::Exited(code) => plain(ExecutionStatus::Failed, i32::from(code)),
        RunEnding::Signalled(signal) => plain(ExecutionStatus::Failed, 128 + i32::from(signal)),
        RunEnding::TimedOut => EndStatus {
            status: ExecutionStatus::Timeout,
            exit_code: -1,
            error: Some(format!("execution timed out after {}", DisplaySeconds(limits.timeout))),
        },
        RunEnding::OutOfMemory => EndStatus {
            status: ExecutionStatus::Oom,
            exit_code: 137,
            error: Some("memory_limit_exceeded".to_owned()),
        },
        RunEnding::Cancelled => stopped_status(stopped_by),
    }
}

fn stopped_status(by: Option<StopCause>) -> EndStatus {
    let (status, error) = match by {
        Some(StopCause::Shutdown) => {
            (ExecutionStatus::Failed, "the server was shut down before the execution ended")
        }
        Some(StopCause::User) | None => (ExecutionStatus::Cancelled, "Cancelled by user"),
    };
    EndStatus { status, exit_code: -1, error: Some(error.to_owned()) }
}
