//! Runs in: mount server (no capabilities). The files that the kernel knows, by number.
//!
//! A file has one number, whatever its names are. Names are kept as directory and name, so that a
//! rename of a directory moves everything below it.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
};

use rustix::io::Errno;

use crate::server::attributes::ROOT;

/// The most files that the kernel may know of one mount. It forgets them when it needs memory.
const MAX_NODES: usize = 1 << 20;
/// The longest path.
const MAX_PATH: usize = 4095;

/// Tells files apart: inode number and time of birth, because inode numbers are used again.
pub(super) type FileIdentity = (u64, i64, u32);

#[derive(Debug, Default)]
pub(super) struct Node {
    identity: FileIdentity,
    /// The names that are known: directory and name.
    links: Vec<(u64, OsString)>,
    lookups: u64,
    /// Open handles.
    pub(super) open: Vec<u64>,
}

/// The files that the kernel knows.
#[derive(Debug)]
pub(super) struct NodeTable {
    next: u64,
    nodes: HashMap<u64, Node>,
    by_identity: HashMap<FileIdentity, u64>,
    by_name: HashMap<(u64, OsString), u64>,
}

impl NodeTable {
    pub(super) fn new() -> Self {
        let root = Node { lookups: 1, ..Node::default() };
        Self {
            next: ROOT + 1,
            nodes: HashMap::from([(ROOT, root)]),
            by_identity: HashMap::new(),
            by_name: HashMap::new(),
        }
    }

    /// The path of a file below the root; empty for the root itself.
    pub(super) fn path_of(&self, node: u64) -> Result<Vec<u8>, Errno> {
        let mut names: Vec<&OsStr> = Vec::new();
        let (mut at, mut length) = (node, 0);
        while at != ROOT {
            let (parent, name) =
                self.nodes.get(&at).ok_or(Errno::STALE)?.links.first().ok_or(Errno::NOENT)?;
            length += name.len() + 1;
            if length > MAX_PATH {
                return Err(Errno::NAMETOOLONG);
            }
            names.push(name);
            at = *parent;
        }
        let mut path = Vec::with_capacity(length);
        for name in names.into_iter().rev() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
        }
        Ok(path)
    }

    /// The path of an entry of a directory.
    pub(super) fn path_in(&self, parent: u64, name: &OsStr) -> Result<Vec<u8>, Errno> {
        let mut path = self.path_of(parent)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        if path.len() > MAX_PATH { Err(Errno::NAMETOOLONG) } else { Ok(path) }
    }

    /// Notes that the kernel is given this file. Returns its number.
    pub(super) fn remember(
        &mut self,
        parent: u64,
        name: &OsStr,
        identity: FileIdentity,
    ) -> Result<u64, Errno> {
        let id = match self.by_identity.get(&identity) {
            Some(id) => *id,
            None if self.nodes.len() >= MAX_NODES => return Err(Errno::NFILE),
            None => {
                let id = self.next;
                self.next += 1;
                self.nodes.insert(id, Node { identity, ..Node::default() });
                self.by_identity.insert(identity, id);
                id
            }
        };
        self.set_name(parent, name, id);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups += 1;
        }
        Ok(id)
    }

    /// Whether another file can be given to the kernel.
    pub(super) fn has_space(&self) -> bool {
        self.nodes.len() < MAX_NODES
    }

    fn set_name(&mut self, parent: u64, name: &OsStr, id: u64) {
        let key = (parent, name.to_owned());
        let old = self.by_name.insert(key.clone(), id);
        if old == Some(id) {
            return;
        }
        if let Some(node) = old.and_then(|old| self.nodes.get_mut(&old)) {
            node.links.retain(|link| *link != key);
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.links.push(key);
        }
    }

    /// The kernel has dropped its knowledge of a file.
    pub(super) fn forget(&mut self, id: u64, lookups: u64) {
        let Some(node) = self.nodes.get_mut(&id).filter(|_| id != ROOT) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 && node.open.is_empty() {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(node) = self.nodes.remove(&id) else { return };
        if self.by_identity.get(&node.identity) == Some(&id) {
            self.by_identity.remove(&node.identity);
        }
        for link in node.links {
            if self.by_name.get(&link) == Some(&id) {
                self.by_name.remove(&link);
            }
        }
    }

    /// A name is gone.
    pub(super) fn unlink(&mut self, parent: u64, name: &OsStr) {
        let key = (parent, name.to_owned());
        if let Some(node) = self.by_name.remove(&key).and_then(|id| self.nodes.get_mut(&id)) {
            node.links.retain(|link| *link != key);
        }
    }

    /// A file has another name now.
    pub(super) fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr)) {
        let key = (from.0, from.1.to_owned());
        let moved = self.by_name.remove(&key);
        self.unlink(to.0, to.1);
        if let Some(id) = moved {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.links.retain(|link| *link != key);
            }
            self.set_name(to.0, to.1, id);
        }
    }

    /// Two files have exchanged their names.
    pub(super) fn exchange(&mut self, one: (u64, &OsStr), other: (u64, &OsStr)) {
        let ids = [one, other].map(|(parent, name)| {
            let id = self.by_name.get(&(parent, name.to_owned())).copied();
            self.unlink(parent, name);
            id
        });
        for (id, (parent, name)) in ids.into_iter().zip([other, one]) {
            if let Some(id) = id {
                self.set_name(parent, name, id);
            }
        }
    }

    pub(super) fn opened(&mut self, id: u64, handle: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.open.push(handle);
        }
    }

    pub(super) fn closed(&mut self, id: u64, handle: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.open.retain(|open| *open != handle);
            if node.lookups == 0 && node.open.is_empty() && id != ROOT {
                self.remove(id);
            }
        }
    }

    /// An open handle of a file.
    pub(super) fn open_handle(&self, id: u64) -> Option<u64> {
        self.nodes.get(&id)?.open.first().copied()
    }
}
