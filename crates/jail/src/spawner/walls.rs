//! Runs in: `cloche doctor`.
//!
//! Tries which walls this host can build, by building them; it reads no settings. `cloche doctor`
//! uses it to name the part that made a whole cell fail.

use super::plan::NAMESPACES;
use crate::sys::{self, CloneRequest, CloneSide, Errno, Result};

/// Every kind of namespace by the name of its wall, and whether a process can be started in one.
///
/// Kinds other than `user` are tried inside a new user namespace, as in a cell.
pub fn try_namespaces() -> impl Iterator<Item = (&'static str, Result<()>)> {
    let user = NAMESPACES[0].1;
    NAMESPACES.iter().map(move |(name, flag)| (*name, try_clone_into(user | flag)))
}

/// Starts a process in these namespaces that exits at once.
fn try_clone_into(namespaces: u64) -> Result<()> {
    match sys::clone(CloneRequest { namespaces, cgroup: None })? {
        CloneSide::Child => sys::exit(0),
        CloneSide::Parent(pid, pidfd) => {
            sys::close(pidfd);
            reap_pid(pid)
        }
    }
}

fn reap_pid(pid: i32) -> Result<()> {
    loop {
        match sys::wait_any() {
            Ok(changed) if changed.pid() == pid => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_namespace_is_tried_once() {
        let names: Vec<_> = try_namespaces().map(|(name, _)| name).collect();
        assert_eq!(names, NAMESPACES.map(|(name, _)| name));
    }
}
