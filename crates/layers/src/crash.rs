//! Named points at which a test can kill the process, as a power cut or the OOM killer would.
//! Release builds ignore them.

/// The points of this crate, in the order in which storing a layer passes them.
pub const POINTS: [&str; 4] =
    ["layer-temp-written", "layer-before-rename", "layer-after-rename", "layer-stored"];

/// The environment variable that names the point at which to kill the process.
pub const VARIABLE: &str = "CLOCHE_CRASH_AT";

/// Kills the process with SIGKILL if the environment names this point.
pub fn reach_point(name: &str) {
    #[cfg(debug_assertions)]
    {
        use std::sync::OnceLock;
        static NAMED: OnceLock<Option<String>> = OnceLock::new();
        let named = NAMED.get_or_init(|| std::env::var(VARIABLE).ok());
        if named.as_deref() == Some(name) {
            let signal = rustix::process::Signal::KILL;
            let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = name;
}
