//! Runs in: pid 1 of a cell and guest (they send), server (no capabilities; it reads).
//!
//! The reports of a cell on its control socket, one message each. Core only.

use core::ffi::CStr;

use crate::sys::{self, Errno, RawFd};

/// A report, as one message of [`REPORT_LEN`] bytes: kind, value, name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellReport {
    /// Every wall is up, and the server can send the job. The home directory is attached as a file
    /// descriptor.
    Ready,
    /// A wall could not be built.
    Failed(WallName, Errno),
    /// The main process exited with this code.
    Exited(i32),
    /// This signal killed the main process.
    Signalled(i32),
    /// The answer to a request after the end: pid 1 is the only process left in the cell.
    Alone,
    /// The cell was ended because it held too much kernel memory that no cgroup counts.
    KernelMemory,
    /// A part of what an OCI runtime said. A report of a failure follows.
    Words(WallName),
}

/// The name of a wall, truncated to what fits into a report.
pub type WallName = [u8; 56];

/// The exit code of a pid 1 that leaves its netns as it was made. No other process can set it: a
/// guest can neither inspect nor end its pid 1.
pub const CLEAN_NETNS: i32 = 77;

/// The length of an encoded report.
pub const REPORT_LEN: usize = 64;

impl CellReport {
    /// The report as bytes for the control socket.
    #[must_use]
    pub fn to_bytes(self) -> [u8; REPORT_LEN] {
        let (kind, value, name) = match self {
            Self::Ready => (1_u32, 0, [0; 56]),
            Self::Failed(name, errno) => (2, errno.0, name),
            Self::Exited(code) => (3, code, [0; 56]),
            Self::Signalled(signal) => (4, signal, [0; 56]),
            Self::Alone => (5, 0, [0; 56]),
            Self::Words(part) => (6, 0, part),
            Self::KernelMemory => (7, 0, [0; 56]),
        };
        let mut out = [0; REPORT_LEN];
        out[..4].copy_from_slice(&kind.to_le_bytes());
        out[4..8].copy_from_slice(&value.to_le_bytes());
        out[8..].copy_from_slice(&name);
        out
    }

    /// Decodes a report; `None` if the bytes are not one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; REPORT_LEN]) -> Option<Self> {
        let value = i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let mut name = [0; 56];
        name.copy_from_slice(&bytes[8..]);
        match bytes[0] {
            1 => Some(Self::Ready),
            2 => Some(Self::Failed(name, Errno(value))),
            3 => Some(Self::Exited(value)),
            4 => Some(Self::Signalled(value)),
            5 => Some(Self::Alone),
            6 => Some(Self::Words(name)),
            7 => Some(Self::KernelMemory),
            _ => None,
        }
    }
}

/// The report that a wall could not be built; its name is truncated.
#[must_use]
pub fn failure_report(wall: &CStr, errno: Errno) -> CellReport {
    let mut name = [0; 56];
    name.iter_mut().zip(wall.to_bytes()).for_each(|(to, from)| *to = *from);
    CellReport::Failed(name, errno)
}

/// Sends a report. If the server has closed the socket, the report is dropped; pid 1 continues to
/// its end either way.
pub fn send_report(control: RawFd, report: CellReport) {
    let _ = sys::sendmsg(control, &report.to_bytes(), &[]);
}
