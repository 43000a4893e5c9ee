//! Whether this host lets us put up a wall, found by trying and not by reading files.
//!
//! For `cloche doctor`, when a whole box fails and someone asks which part of it was to blame.

use crate::{
    plan::NAMESPACES,
    sys::{self, CloneRequest, Cloned, Errno, Result},
};

/// Every kind of namespace by the name of its wall, and whether a process can be born into one.
///
/// Kinds other than `user` are tried inside a new user namespace, as a box has them.
pub fn namespaces() -> impl Iterator<Item = (&'static str, Result<()>)> {
    let user = NAMESPACES[0].1;
    NAMESPACES.iter().map(move |(name, flag)| (*name, enter(user | flag)))
}

/// Starts a process in these namespaces, which ends at once.
fn enter(namespaces: u64) -> Result<()> {
    match sys::clone(CloneRequest { namespaces, cgroup: None })? {
        Cloned::Child => sys::exit(0),
        Cloned::Parent(pid, pidfd) => {
            sys::close(pidfd);
            reap(pid)
        }
    }
}

fn reap(pid: i32) -> Result<()> {
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
    fn every_kind_is_tried_once() {
        let names: Vec<_> = namespaces().map(|(name, _)| name).collect();
        assert_eq!(names, NAMESPACES.map(|(name, _)| name));
    }
}
