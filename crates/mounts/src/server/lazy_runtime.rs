//! Runs in: mount server (no capabilities). The asynchronous runtime of the object mounts of one
//! process, made when a request first needs it: an unused mount starts no threads for it.

use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};

#[derive(Default)]
pub(super) struct LazyRuntime(OnceLock<Option<Runtime>>);

impl LazyRuntime {
    /// The runtime; `None` if the kernel gives this process no threads for it.
    pub(super) fn get(&self) -> Option<&Runtime> {
        let make = || {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(2).max_blocking_threads(4).enable_all().build().ok()
        };
        self.0.get_or_init(make).as_ref()
    }
}
