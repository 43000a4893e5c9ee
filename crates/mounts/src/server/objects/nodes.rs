//! Runs in: mount server (no capabilities). The files and directories of an object store that the
//! kernel knows, by number.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use fuser::{FileAttr, FileType};
use rustix::io::Errno;

use super::spool::SpoolFile;
use crate::{
    ObjectInfo, ObjectPath,
    server::attributes::{FileFacts, ROOT},
};

/// The most files that the kernel may know of one mount.
const MAX_NODES: usize = 1 << 20;
/// The most names that are known not to exist.
const MAX_ABSENT: usize = 1 << 14;
/// The most names that are known from a listing only.
const MAX_LISTED: usize = 1 << 14;

/// A file or directory.
pub(super) struct ObjectNode {
    parent: u64,
    name: String,
    pub(super) is_directory: bool,
    lookups: u64,
    pub(super) handles: u64,
    /// What is known of an object.
    pub(super) info: Option<ObjectInfo>,
    /// When that was asked for.
    fetched: Instant,
    /// A directory that was made here and has no object yet.
    pub(super) is_local: bool,
    pub(super) spool: Option<Arc<SpoolFile>>,
    /// Handles that write to the spool.
    pub(super) writers: u64,
    /// Its object was written here, so readers may follow to the new one.
    pub(super) was_written: bool,
    pub(super) unlinked: bool,
    /// What the guest has set; no store keeps it.
    pub(super) mode: Option<u32>,
    pub(super) times: (Option<SystemTime>, Option<SystemTime>),
}

/// What was found under a name.
pub(super) enum Found {
    Directory,
    Object(ObjectInfo),
}

pub(super) struct ObjectNodes {
    next: u64,
    nodes: HashMap<u64, ObjectNode>,
    names: HashMap<(u64, String), u64>,
    absent: HashMap<(u64, String), Instant>,
    /// Objects that a listing had and the kernel has not looked up yet.
    listed: HashMap<(u64, String), (ObjectInfo, Instant)>,
    started: SystemTime,
}

impl ObjectNodes {
    pub(super) fn new() -> Self {
        let root = ObjectNode::new(ROOT, String::new(), true);
        Self {
            next: ROOT + 1,
            nodes: HashMap::from([(ROOT, root)]),
            names: HashMap::new(),
            absent: HashMap::new(),
            listed: HashMap::new(),
            started: SystemTime::now(),
        }
    }

    pub(super) fn get(&self, id: u64) -> Result<&ObjectNode, Errno> {
        self.nodes.get(&id).ok_or(Errno::STALE)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Result<&mut ObjectNode, Errno> {
        self.nodes.get_mut(&id).ok_or(Errno::STALE)
    }

    pub(super) fn child(&self, parent: u64, name: &str) -> Option<u64> {
        self.names.get(&(parent, name.to_owned())).copied()
    }

    /// The directory and name of a file.
    pub(super) fn name_of(&self, id: u64) -> Result<(u64, String), Errno> {
        let node = self.get(id)?;
        Ok((node.parent, node.name.clone()))
    }

    pub(super) fn path_of(&self, id: u64) -> Result<ObjectPath, Errno> {
        let mut names = Vec::new();
        let mut at = id;
        while at != ROOT {
            let node = self.get(at)?;
            names.push(node.name.as_str());
            at = node.parent;
        }
        let mut path = ObjectPath::default();
        for name in names.into_iter().rev() {
            path = path.join(name).map_err(|_| Errno::INVAL)?;
        }
        Ok(path)
    }

    /// Whether what is known of a file can be used without asking.
    pub(super) fn is_fresh(&self, id: u64, ttl: Duration) -> bool {
        self.nodes
            .get(&id)
            .is_some_and(|node| id == ROOT || node.spool.is_some() || node.fetched.elapsed() < ttl)
    }

    pub(super) fn is_absent(&self, parent: u64, name: &str, ttl: Duration) -> bool {
        let known = self.absent.get(&(parent, name.to_owned()));
        known.is_some_and(|since| since.elapsed() < ttl)
    }

    pub(super) fn note_absent(&mut self, parent: u64, name: &str) {
        if self.absent.len() >= MAX_ABSENT {
            self.absent.clear();
        }
        self.listed.remove(&(parent, name.to_owned()));
        self.absent.insert((parent, name.to_owned()), Instant::now());
    }

    /// Notes an object of a listing. A program that lists a directory often opens its files next.
    pub(super) fn note_listed(&mut self, parent: u64, name: &str, info: &ObjectInfo) {
        if self.listed.len() >= MAX_LISTED {
            self.listed.clear();
        }
        self.listed.insert((parent, name.to_owned()), (info.clone(), Instant::now()));
    }

    /// Takes what a listing said of an object.
    pub(super) fn take_listed(
        &mut self,
        parent: u64,
        name: &str,
        ttl: Duration,
    ) -> Option<ObjectInfo> {
        let (info, since) = self.listed.remove(&(parent, name.to_owned()))?;
        (since.elapsed() < ttl).then_some(info)
    }

    pub(super) fn has_space(&self) -> bool {
        self.nodes.len() < MAX_NODES
    }

    /// Notes what was found under a name. Returns its number.
    pub(super) fn note(&mut self, parent: u64, name: &str, found: Found) -> Result<u64, Errno> {
        let key = (parent, name.to_owned());
        self.absent.remove(&key);
        self.listed.remove(&key);
        let is_directory = matches!(found, Found::Directory);
        let known = self.child(parent, name);
        let known = known
            .filter(|id| self.nodes.get(id).is_some_and(|node| node.is_directory == is_directory));
        let id = match known {
            Some(id) => id,
            None if !self.has_space() => return Err(Errno::NFILE),
            None => {
                self.detach(parent, name);
                let id = self.next;
                self.next += 1;
                self.nodes.insert(id, ObjectNode::new(parent, name.to_owned(), is_directory));
                self.names.insert((parent, name.to_owned()), id);
                id
            }
        };
        if let Some(node) = self.nodes.get_mut(&id) {
            node.fetched = Instant::now();
            if let Found::Object(info) = found {
                node.info = Some(info);
            }
        }
        Ok(id)
    }

    pub(super) fn add_lookup(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups += 1;
        }
    }

    pub(super) fn forget(&mut self, id: u64, lookups: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(lookups);
        }
        self.remove_unused(id);
    }

    /// Removes a node that the kernel does not know, unless it has something that only it knows.
    pub(super) fn remove_unused(&mut self, id: u64) {
        let is_unused = id != ROOT
            && self.nodes.get(&id).is_some_and(|node| {
                let is_known = node.is_local || node.mode.is_some() || node.spool.is_some();
                node.lookups == 0 && node.handles == 0 && (!is_known || node.unlinked)
            });
        if is_unused && let Some(node) = self.nodes.remove(&id) {
            let key = (node.parent, node.name);
            if self.names.get(&key) == Some(&id) {
                self.names.remove(&key);
            }
        }
    }

    /// A name leads to nothing any more.
    pub(super) fn detach(&mut self, parent: u64, name: &str) -> Option<u64> {
        let key = (parent, name.to_owned());
        self.listed.remove(&key);
        let id = self.names.remove(&key)?;
        if let Some(node) = self.nodes.get_mut(&id) {
            node.unlinked = true;
            node.is_local = false;
            if let Some(spool) = &node.spool {
                spool.mark_unlinked();
            }
        }
        self.remove_unused(id);
        Some(id)
    }

    /// A file has another name now.
    pub(super) fn rename(&mut self, id: u64, parent: u64, name: &str) {
        self.detach(parent, name);
        self.absent.remove(&(parent, name.to_owned()));
        if let Ok((old_parent, old_name)) = self.name_of(id) {
            self.names.remove(&(old_parent, old_name.clone()));
            self.note_absent(old_parent, &old_name);
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            (node.parent, node.name) = (parent, name.to_owned());
            self.names.insert((parent, name.to_owned()), id);
        }
    }

    /// Entries of a directory that a listing of the store does not have.
    pub(super) fn local_children(&self, parent: u64) -> Vec<(String, u64)> {
        let is_local = |node: &ObjectNode| {
            let unstored = node.spool.as_ref().is_some_and(|spool| !spool.is_stored());
            node.parent == parent && !node.unlinked && (node.is_local || unstored)
        };
        let all = self.nodes.iter().filter(|(id, node)| **id != ROOT && is_local(node));
        all.map(|(id, node)| (node.name.clone(), *id)).collect()
    }

    /// Whether a directory has entries that are known here.
    pub(super) fn has_children(&self, parent: u64) -> bool {
        !self.local_children(parent).is_empty()
    }

    /// All files that are being written.
    pub(super) fn spools(&self) -> Vec<(u64, Arc<SpoolFile>)> {
        let spool = |(id, node): (&u64, &ObjectNode)| Some((*id, Arc::clone(node.spool.as_ref()?)));
        self.nodes.iter().filter_map(spool).collect()
    }

    pub(super) fn attributes(
        &self,
        id: u64,
        owner: (u32, u32),
        read_only: bool,
    ) -> Result<FileAttr, Errno> {
        let node = self.get(id)?;
        let (kind, default_mode) = match (node.is_directory, read_only) {
            (true, false) => (FileType::Directory, 0o755),
            (true, true) => (FileType::Directory, 0o555),
            (false, false) => (FileType::RegularFile, 0o644),
            (false, true) => (FileType::RegularFile, 0o444),
        };
        let (size, modified) = match (&node.spool, &node.info) {
            (Some(spool), _) => (spool.size(), spool.modified()),
            (None, Some(info)) => (info.size, info.modified),
            (None, None) => (0, self.started),
        };
        let changed = modified;
        let modified = node.times.1.unwrap_or(modified);
        let facts = FileFacts {
            inode: id,
            kind,
            mode: node.mode.unwrap_or(default_mode),
            size,
            links: if node.is_directory { 2 } else { u32::from(!node.unlinked) },
            accessed: node.times.0.unwrap_or(modified),
            modified,
            changed,
        };
        Ok(facts.to_attributes(owner))
    }
}

impl ObjectNode {
    fn new(parent: u64, name: String, is_directory: bool) -> Self {
        Self {
            parent,
            name,
            is_directory,
            lookups: 0,
            handles: 0,
            info: None,
            fetched: Instant::now(),
            is_local: false,
            spool: None,
            writers: 0,
            was_written: false,
            unlinked: false,
            mode: None,
            times: (None, None),
        }
    }
}
