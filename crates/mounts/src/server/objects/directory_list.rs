//! Runs in: mount server (no capabilities). The listing of an open directory, page by page.

use std::collections::{HashSet, VecDeque};

use fuser::FileAttr;
use rustix::io::Errno;

use super::{mount::ObjectMount, nodes::Found};
use crate::{ObjectInfo, ObjectPath, StorageError};

/// Pages without an entry, one after the other, after which a listing has no end.
const MAX_EMPTY_PAGES: u32 = 100;

/// Names that the kernel takes for what it knows, and counts no lookup of.
const DOTS: [&str; 2] = [".", ".."];

/// One entry that was not given to the kernel yet.
struct Entry {
    name: String,
    /// `None` for a directory.
    info: Option<ObjectInfo>,
    /// The number of an entry that only this process knows.
    node: Option<u64>,
}

/// The listing of an open directory. Entries that were read are dropped, so that a directory of any
/// size fits.
pub(super) struct DirectoryList {
    node: u64,
    path: ObjectPath,
    entries: VecDeque<Entry>,
    /// The offset of the first entry.
    first: u64,
    next_page: NextPage,
    /// Names that came first because only this process knows them.
    local: HashSet<String>,
}

enum NextPage {
    Start,
    From(String),
    End,
}

impl DirectoryList {
    pub(super) fn new(node: u64, path: ObjectPath) -> Self {
        Self {
            node,
            path,
            entries: VecDeque::new(),
            first: 0,
            next_page: NextPage::Start,
            local: HashSet::new(),
        }
    }

    /// Gives the kernel entries from an offset on, until `each` says that there is no more space.
    pub(super) async fn list(
        &mut self,
        mount: &ObjectMount,
        offset: u64,
        with_attributes: bool,
        mut each: impl FnMut(u64, &str, bool, Option<&FileAttr>) -> bool + Send,
    ) -> Result<(), Errno> {
        if offset < self.first || offset == 0 {
            *self = Self::new(self.node, self.path.clone());
        }
        let mut at = offset;
        loop {
            while self.first < at && self.entries.pop_front().is_some() {
                self.first += 1;
            }
            let index = usize::try_from(at - self.first).unwrap_or(usize::MAX);
            let Some(entry) = self.entries.get(index) else {
                if at > offset {
                    // The kernel has some entries; the next page may take a while.
                    return Ok(());
                }
                if !self.fetch_page(mount).await? {
                    return Ok(());
                }
                continue;
            };
            let node = match with_attributes {
                true => self.remember(mount, entry),
                false => None,
            };
            let attributes = node.and_then(|node| mount.attributes_of(node).ok());
            let is_dots = DOTS.contains(&&*entry.name);
            let is_directory = is_dots
                || entry.info.is_none() && entry.node.is_none()
                || attributes
                    .as_ref()
                    .is_some_and(|found| found.kind == fuser::FileType::Directory);
            if each(at + 1, &entry.name, is_directory, attributes.as_ref()) {
                return Ok(());
            }
            let is_counted = attributes.is_some() && !is_dots;
            if let Some(node) = node.filter(|_| is_counted) {
                mount.nodes.lock().add_lookup(node);
            }
            at += 1;
        }
    }

    fn remember(&self, mount: &ObjectMount, entry: &Entry) -> Option<u64> {
        let mut nodes = mount.nodes.lock();
        if entry.node.is_some() {
            return entry.node;
        }
        let known = nodes.child(self.node, &entry.name);
        if let Some(known) =
            known.filter(|id| nodes.get(*id).is_ok_and(|node| node.spool.is_some()))
        {
            return Some(known);
        }
        let found = match &entry.info {
            Some(info) => Found::Object(info.clone()),
            None => Found::Directory,
        };
        nodes.note(self.node, &entry.name, found).ok()
    }

    /// Reads the next page; false at the end of the directory.
    async fn fetch_page(&mut self, mount: &ObjectMount) -> Result<bool, Errno> {
        if matches!(self.next_page, NextPage::Start) {
            mount.small_files.lock().begin_listing(self.node);
            for name in DOTS {
                let node = Some(self.node);
                self.entries.push_back(Entry { name: name.to_owned(), info: None, node });
            }
            for (name, node) in mount.nodes.lock().local_children(self.node) {
                self.local.insert(name.clone());
                self.entries.push_back(Entry { name, info: None, node: Some(node) });
            }
        }
        let before = self.entries.len();
        let storage = mount.storage()?;
        for _ in 0..MAX_EMPTY_PAGES {
            let from = match &self.next_page {
                NextPage::Start => None,
                NextPage::From(token) => Some(token.clone()),
                NextPage::End => return Ok(!self.entries.is_empty()),
            };
            let page = mount.ask(storage.list_page(&self.path, from.clone())).await;
            let page = page.map_err(|error| mount.fail(&error))?;
            if page.next.is_some() && page.next == from {
                let error = StorageError::Unreachable("a listing does not go on".to_owned());
                return Err(mount.fail(&error));
            }
            self.next_page = page.next.map_or(NextPage::End, NextPage::From);
            let directories = page.directories.into_iter().map(|name| (name, None));
            let objects = page.objects.into_iter().map(|object| (object.name, Some(object.info)));
            let hidden = |name: &str| {
                let nodes = mount.nodes.lock();
                self.local.contains(name)
                    || (nodes.child(self.node, name).is_none()
                        && nodes.is_absent(self.node, name, mount.ttl()))
            };
            for (name, info) in directories.chain(objects).filter(|(name, _)| !hidden(name)) {
                if let Some(info) = &info {
                    mount.nodes.lock().note_listed(self.node, &name, info);
                    mount.small_files.lock().note_listed(self.node, &name, info);
                }
                self.entries.push_back(Entry { name, info, node: None });
            }
            if self.entries.len() > before || matches!(self.next_page, NextPage::End) {
                return Ok(!self.entries.is_empty());
            }
        }
        let error = StorageError::Unreachable("a listing has no end".to_owned());
        Err(mount.fail(&error))
    }
}
