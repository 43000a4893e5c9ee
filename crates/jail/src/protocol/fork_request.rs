//! Runs in: spawner (root), template.
//!
//! The request by which the spawner has a template fork a cell.
//!
//! A head of [`REQUEST_HEAD`] bytes, then the encoded plan; the cell's descriptors travel with it.
//! The head holds little-endian numbers: the image owner, the guest, and the guest as it sees
//! itself (ids of the template's user namespace, 32 bits each), then the namespaces (64 bits).

use crate::sys::SharedStack;

/// A flag among the namespaces of a request: the loopback interface of the new netns is up.
pub const WITH_LOOPBACK: u64 = 1 << 63;
/// A flag among the namespaces of a request: a network will be attached to the new netns, so no
/// other cell may use it afterwards.
pub const NETNS_USED_ONCE: u64 = 1 << 62;
/// The longest request, its head included.
pub const REQUEST_LEN: usize = SharedStack::BYTES;
/// An id in the head: none.
pub const NO_ID: u32 = u32::MAX;
/// The length of the head.
pub const REQUEST_HEAD: usize = 20;
