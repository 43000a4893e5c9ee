//! Writes a model's text into the response as it arrives.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    ResponseEventKind, ResponseItem, TextListener, agent::random_name, live::LiveResponse,
};

/// After this many pieces, small pieces are merged to limit the number of events.
const MANY: usize = 5_000;
/// The minimum size of a merged piece, in bytes.
const GATHERED: usize = 512;

/// One message being written. It is created with the first text.
pub(super) struct MessageWriter {
    live: Arc<LiveResponse>,
    state: Mutex<MessageWriterState>,
}

#[derive(Default)]
struct MessageWriterState {
    /// The index and id of the message.
    position: Option<(usize, String)>,
    pieces: usize,
    held: String,
}

impl MessageWriter {
    pub(super) fn new(live: Arc<LiveResponse>) -> Self {
        Self { live, state: Mutex::default() }
    }

    /// Completes the message.
    pub(super) fn finish_message(&self) {
        let mut state = self.state.lock();
        let held = std::mem::take(&mut state.held);
        let Some((index, item_id)) = state.position.clone() else { return };
        if !held.is_empty() {
            self.append_text(index, &item_id, &held);
        }
        self.live.change(|response| {
            let Some(ResponseItem::Message { text, done, .. }) = response.output.get_mut(index)
            else {
                return ((), Vec::new());
            };
            *done = true;
            let text = text.clone();
            let text_done = ResponseEventKind::TextDone { index, item_id, text };
            let item = response.output[index].clone();
            ((), vec![text_done, ResponseEventKind::ItemDone { index, item }])
        });
    }

    fn append_text(&self, index: usize, item_id: &str, piece: &str) {
        self.live.change(|response| {
            if let Some(ResponseItem::Message { text, .. }) = response.output.get_mut(index) {
                text.push_str(piece);
            }
            let (item_id, delta) = (item_id.to_owned(), piece.to_owned());
            ((), vec![ResponseEventKind::TextDelta { index, item_id, delta }])
        });
    }

    fn begin_message(&self) -> (usize, String) {
        self.live.change(|response| {
            let (index, id) = (response.output.len(), random_name("msg_"));
            let item = ResponseItem::Message { id: id.clone(), text: String::new(), done: false };
            response.output.push(item.clone());
            ((index, id), vec![ResponseEventKind::ItemAdded { index, item }])
        })
    }
}

impl TextListener for MessageWriter {
    fn on_text(&self, piece: &str) {
        let mut state = self.state.lock();
        state.pieces += 1;
        state.held.push_str(piece);
        if state.pieces > MANY && state.held.len() < GATHERED {
            return;
        }
        let held = std::mem::take(&mut state.held);
        let (index, id) = state.position.get_or_insert_with(|| self.begin_message()).clone();
        self.append_text(index, &id, &held);
    }

    fn has_text(&self) -> bool {
        self.state.lock().pieces > 0
    }
}
