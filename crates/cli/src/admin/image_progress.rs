//! Runs in: the commands that ask a server.
//!
//! The progress of a pull or an import on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

/// Shows events on standard error. Shows nothing if that is not a terminal.
pub(super) struct ImageProgressBar {
    bar: ProgressBar,
    phase: String,
}

impl ImageProgressBar {
    pub(super) fn new(visible: bool) -> Self {
        let bar = match visible {
            true => ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()),
            false => ProgressBar::hidden(),
        };
        bar.enable_steady_tick(Duration::from_millis(120));
        Self { bar, phase: String::new() }
    }

    /// Shows how far the work is.
    pub(super) fn show_event(&mut self, event: &Value) {
        let number = |name: &str| event[name].as_u64().unwrap_or_default();
        let phase = event["phase"].as_str().unwrap_or_default();
        if phase != self.phase {
            self.phase = phase.to_owned();
            self.bar.reset();
            self.bar.set_style(style_of(number("bytes") > 0));
        }
        let (bytes, layers) = (number("bytes"), number("layers"));
        if bytes > 0 {
            self.bar.set_length(bytes);
        }
        self.bar.set_position(number("bytes_done"));
        self.bar.set_message(match (event["trying"].as_str(), layers) {
            (Some(interpreter), _) => format!("{} {interpreter}", self.phase),
            (None, 0) => self.phase.clone(),
            (None, _) => format!("{}, layer {} of {layers}", self.phase, number("layers_done")),
        });
    }
}

impl Drop for ImageProgressBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style_of(has_length: bool) -> ProgressStyle {
    let template = match has_length {
        true => "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {msg}",
        false => "{spinner} {bytes} {bytes_per_sec} {msg}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
