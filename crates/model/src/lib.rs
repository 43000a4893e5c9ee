//! The words of Cloche: what is asked, what is agreed, what was done.
//!
//! Plain data without I/O and without async. Every other crate may use these words; this crate
//! knows none of them, and it knows no kernel, no database and no protocol.

mod language;
mod outcome;
mod run;
mod units;

pub use language::{Language, UnknownLanguage};
pub use outcome::{Captured, Ending, Outcome, OutputChunk, StreamName, Timings, Usage};
pub use run::{FileName, InputFile, InvalidFileName, Limits, Network, RunSpec, SandboxShape};
pub use units::{ByteSize, Cpus, InvalidUnit};
