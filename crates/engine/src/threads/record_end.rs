//! Runs in: server (no capabilities).
//!
//! Writes the end of an execution. The outcome is always recorded: files that the team may not
//! store are left out, and a full disk gets a shorter record.

use cloche_layers::crash;
use cloche_model::{ExecutionEnd, Layer};
use cloche_store::{ExecutionFinish, FinishOutcome, StoreError};

use super::OpenThread;

/// The error in the record when there was no room for what was written.
pub(crate) const QUOTA: &str = "disk quota exceeded";
/// The error in the record when the thread's head could not be moved.
const LOST: &str =
    "the thread was taken over while this execution ran; what it wrote to its home is not kept";
/// The most of each output stream that is recorded while the disk is short, and once it is full.
const SHORT_OUTPUT: usize = 64 << 10;
const LEAST_OUTPUT: usize = 1 << 10;

impl OpenThread {
    /// Writes the end, and returns what was recorded instead of `finish`.
    pub(super) async fn finish_within_budget(
        &self,
        mut finish: ExecutionFinish,
    ) -> Result<ExecutionFinish, StoreError> {
        let storage = &self.threads.storage;
        let layer = finish.end.written.layer.clone();
        let moves = finish.thread.is_some() && layer.is_some();
        if moves {
            crash::reach_point("layer-durable");
        }
        finish.budget = storage.unreserved_budget(&self.team);
        let mut finished = self.write_end(&mut finish).await?;
        if finished == FinishOutcome::OverBudget {
            self.make_room_for(layer.as_ref()).await;
            finish.budget = storage.unreserved_budget(&self.team);
            finished = self.write_end(&mut finish).await?;
        }
        if finished == FinishOutcome::OverBudget {
            leave_files_out(&mut finish);
            finished = self.write_end(&mut finish).await?;
        }
        if finished == FinishOutcome::ThreadLost {
            tracing::error!(trace_id = %finish.trace_id, "an execution lost its thread");
            finish.thread = None;
            finish.end.error = Some(LOST.to_owned());
            if self.write_end(&mut finish).await? == FinishOutcome::OverBudget {
                leave_files_out(&mut finish);
                self.write_end(&mut finish).await?;
            }
        }
        if moves {
            crash::reach_point("head-moved");
        }
        match (layer, &finish.end.written.layer) {
            (Some(layer), Some(_)) => storage.settle_layer(&layer.digest),
            (Some(layer), None) => storage.discard_layer(&layer.digest).await,
            (None, _) => {}
        }
        Ok(finish)
    }

    async fn make_room_for(&self, layer: Option<&Layer>) {
        let wanted = layer.map_or(0, Layer::disk_bytes);
        if let Err(refusal) = self.threads.storage.make_room(&self.team, wanted).await {
            tracing::error!(error = %refusal, source = ?refusal.source, "a team was not pruned");
        }
    }

    /// Writes the end, however little room the disk has for it.
    async fn write_end(&self, finish: &mut ExecutionFinish) -> Result<FinishOutcome, StoreError> {
        let (store, host) = (&self.threads.store, self.threads.storage.host());
        if host.is_short() {
            let most = if host.is_full() { LEAST_OUTPUT } else { SHORT_OUTPUT };
            truncate_output(&mut finish.end, most);
        }
        match store.finish_execution(finish.clone()).await {
            Err(StoreError::Full) => {}
            other => return other,
        }
        if host.release_ballast() {
            match store.finish_execution(finish.clone()).await {
                Err(StoreError::Full) => {}
                other => return other,
            }
        }
        truncate_output(&mut finish.end, LEAST_OUTPUT);
        store.finish_execution(finish.clone()).await
    }
}

/// The outcome without the files, which the team may not store; its home stays as it was.
fn leave_files_out(finish: &mut ExecutionFinish) {
    let written = &mut finish.end.written;
    written.layer = None;
    written.quota_exceeded = true;
    written.files.iter_mut().for_each(|file| file.truncated = true);
    finish.end.error.get_or_insert_with(|| QUOTA.to_owned());
    finish.moves_head = false;
}

/// Keeps the beginning of each stream, and counts the rest as dropped.
fn truncate_output(end: &mut ExecutionEnd, most: usize) {
    for (stream, dropped) in
        [(&mut end.stdout, &mut end.stdout_dropped), (&mut end.stderr, &mut end.stderr_dropped)]
    {
        *dropped += stream.len().saturating_sub(most) as u64;
        stream.truncate(most);
    }
    end.output_truncated = end.loses_output();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_record_says_what_it_left_out() {
        let mut end = ExecutionEnd { stdout: vec![b'a'; 3000].into(), ..ExecutionEnd::default() };
        end.stderr = bytes::Bytes::from_static(b"short");
        truncate_output(&mut end, LEAST_OUTPUT);
        assert_eq!((end.stdout.len(), end.stdout_dropped), (1024, 1976));
        assert!(end.output_truncated);
        assert_eq!((&end.stderr[..], end.stderr_dropped), (&b"short"[..], 0));
    }
}
