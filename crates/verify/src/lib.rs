//! Attacks the sandbox on this host and reports what held.
//!
//! `probes` is the table of attacks, their programs are in `probes/`. `runner` plays one,
//! `verdict` decides whether it held, `suite` plays them all, and `report` shows the result.
//! `cloche verify` is a command over this crate; the escape suite uses its parts. It must not know
//! how walls are built.

pub mod decoys;
pub mod host;
pub mod probes;
pub mod report;
pub mod runner;
pub mod substrates;
mod suite;
pub mod verdict;

pub use decoys::HostDecoys;
pub use host::HostCounts;
pub use probes::{PROBES, Probe};
pub use report::{VerifyReport, to_inert_text};
pub use runner::{ProbeFinding, ProbeRunner};
pub use suite::{choose_probes, run_probes};
