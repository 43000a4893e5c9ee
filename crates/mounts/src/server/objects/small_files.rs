//! Runs in: mount server (no capabilities). Reads small objects before a program opens them.
//!
//! A program that opens the files of a directory in the order of its listing will open the next ones
//! too. After some files in order, the following ones are requested at once; each is pinned to the
//! version that the listing had.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use super::read_ahead::ObjectReader;
use crate::ObjectInfo;

/// The most names of a listing that are kept, in order.
const MAX_NAMES: usize = 1 << 14;
/// How many files must be opened in order before others are requested.
const LEAST_IN_ORDER: u32 = 3;
/// The most files, and the most bytes of them, that are requested ahead.
const MAX_FILES: usize = 16;
const MAX_BYTES: u64 = 4 << 20;

/// The latest listing of a mount, and what was requested of it.
#[derive(Default)]
pub(super) struct SmallFiles {
    directory: u64,
    /// The small objects, in the order of the store.
    names: Vec<(String, ObjectInfo)>,
    /// The place after the file that was opened last.
    next: usize,
    /// How many files were opened in order.
    in_order: u32,
    ahead: VecDeque<FileAhead>,
}

/// A file that was requested and not opened yet.
struct FileAhead {
    place: usize,
    reader: Arc<ObjectReader>,
}

impl SmallFiles {
    /// A listing of a directory begins.
    pub(super) fn begin_listing(&mut self, directory: u64) {
        *self = Self { directory, ..Self::default() };
    }

    /// Notes an object of a listing. One without a tag could not be pinned to its version.
    pub(super) fn note_listed(&mut self, directory: u64, name: &str, info: &ObjectInfo) {
        let is_usable = ObjectReader::is_small(info.size) && info.tag.is_some();
        // Places are found by a search, so names of a store that does not sort them are left out.
        let is_sorted = self.names.last().is_none_or(|(last, _)| **last < *name);
        if directory == self.directory && is_usable && is_sorted && self.names.len() < MAX_NAMES {
            self.names.push((name.to_owned(), info.clone()));
        }
    }

    /// A file is opened to read. Returns its reader if it was requested ahead in this version.
    pub(super) fn open(
        &mut self,
        directory: u64,
        name: &str,
        info: &ObjectInfo,
    ) -> Option<Arc<ObjectReader>> {
        let place = self.place_of(directory, name)?;
        let is_in_order = place == self.next || self.in_order == 0;
        self.in_order = if is_in_order { self.in_order.saturating_add(1) } else { 1 };
        self.next = place + 1;
        if !is_in_order {
            self.ahead.clear();
        }
        while self.ahead.front().is_some_and(|first| first.place < place) {
            self.ahead.pop_front();
        }
        let first = self.ahead.pop_front_if(|first| first.place == place)?;
        let is_same = self.names[place].1.tag == info.tag && self.names[place].1.size == info.size;
        (is_same && !first.reader.has_failed()).then_some(first.reader)
    }

    /// What a store said of a file that was requested ahead, if it said so a short while ago.
    pub(super) fn answered(
        &self,
        directory: u64,
        name: &str,
        within: Duration,
    ) -> Option<ObjectInfo> {
        let place = self.place_of(directory, name)?;
        let found = self.ahead.iter().find(|ahead| ahead.place == place)?;
        let is_recent = |at: Instant| at.elapsed() < within;
        found.reader.answered().is_some_and(is_recent).then(|| self.names[place].1.clone())
    }

    /// A file was changed here: what was requested of it is old.
    pub(super) fn forget(&mut self, directory: u64, name: &str) {
        if let Some(place) = self.place_of(directory, name) {
            self.ahead.retain(|ahead| ahead.place != place);
        }
    }

    /// Requests the next files, if files are opened in order. `read` starts to read one; `None` if
    /// there is no space for it.
    pub(super) fn read_ahead(
        &mut self,
        mut read: impl FnMut(&str, &ObjectInfo) -> Option<Arc<ObjectReader>>,
    ) {
        let Some(doublings) = self.in_order.checked_sub(LEAST_IN_ORDER) else { return };
        let most = (2_usize << doublings.min(4)).min(MAX_FILES);
        // Requested in groups: one wake-up of the runtime serves several files.
        if self.ahead.len() > most / 2 {
            return;
        }
        let begin = self.ahead.back().map_or(self.next, |last| last.place + 1);
        let ahead = self.ahead.iter().map(|ahead| self.names[ahead.place].1.size);
        let mut bytes: u64 = ahead.sum();
        let end = self.names.len().min(self.next + most);
        for (place, (name, info)) in self.names.iter().enumerate().take(end).skip(begin) {
            bytes += info.size;
            if bytes > MAX_BYTES {
                return;
            }
            let Some(reader) = read(name, info) else { return };
            self.ahead.push_back(FileAhead { place, reader });
        }
    }

    fn place_of(&self, directory: u64, name: &str) -> Option<usize> {
        if directory != self.directory {
            return None;
        }
        self.names.binary_search_by(|(have, _)| (**have).cmp(name)).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use cloche_model::{KeyPrefix, ObjectConnection, ObjectCredentials, ObjectStoreKind};

    use super::*;
    use crate::{ObjectPath, ObjectStorage, SystemAccess, server::objects::read_ahead::ReadBudget};

    const DIRECTORY: u64 = 7;

    fn info(tag: &str) -> ObjectInfo {
        let tag = Some(tag.to_owned());
        ObjectInfo { size: 10, modified: SystemTime::UNIX_EPOCH, tag }
    }

    /// A reader that has requested nothing.
    fn reader() -> Arc<ObjectReader> {
        let connection = ObjectConnection {
            kind: ObjectStoreKind::S3,
            endpoint: Some("http://127.0.0.1:1".to_owned()),
            bucket: "b".to_owned(),
            region: None,
            credentials: ObjectCredentials::Anonymous,
            allows_private_endpoint: true,
        };
        let access = Arc::new(SystemAccess);
        let storage = ObjectStorage::connect(&connection, KeyPrefix::default(), access).unwrap();
        let path = ObjectPath::parse("x").unwrap();
        Arc::new(ObjectReader::new(storage, path, (10, None), ReadBudget::new(1 << 20)))
    }

    fn listed(count: usize) -> SmallFiles {
        let mut files = SmallFiles::default();
        files.begin_listing(DIRECTORY);
        for number in 0..count {
            files.note_listed(DIRECTORY, &format!("{number:03}"), &info("\"1\""));
        }
        files
    }

    /// Opens a file as a program does. Returns whether it was requested ahead, and what is requested.
    fn open(files: &mut SmallFiles, name: &str) -> (bool, Vec<String>) {
        let was_ahead = files.open(DIRECTORY, name, &info("\"1\"")).is_some();
        let (mut asked, one) = (Vec::new(), reader());
        files.read_ahead(|name, _| {
            asked.push(name.to_owned());
            Some(Arc::clone(&one))
        });
        (was_ahead, asked)
    }

    #[test]
    fn files_are_requested_after_some_were_opened_in_order_and_more_each_time() {
        let mut files = listed(100);
        for name in ["000", "001"] {
            assert_eq!(open(&mut files, name), (false, Vec::new()));
        }
        assert_eq!(open(&mut files, "002"), (false, vec!["003".to_owned(), "004".to_owned()]));
        assert!(open(&mut files, "003").0);
        let mut most = 0;
        for number in 4..100 {
            let (was_ahead, asked) = open(&mut files, &format!("{number:03}"));
            assert!(was_ahead, "{number}");
            most = most.max(asked.len());
            assert!(files.ahead.len() <= MAX_FILES);
        }
        assert!(most > 4 && files.ahead.is_empty());
    }

    #[test]
    fn a_jump_drops_what_was_requested() {
        let mut files = listed(100);
        for name in ["000", "001", "002"] {
            open(&mut files, name);
        }
        assert_eq!(open(&mut files, "050"), (false, Vec::new()));
        assert!(files.ahead.is_empty());
    }

    #[test]
    fn another_version_and_a_file_that_was_changed_here_are_not_used() {
        let mut files = listed(100);
        for name in ["000", "001", "002"] {
            open(&mut files, name);
        }
        assert!(files.open(DIRECTORY, "003", &info("\"2\"")).is_none());
        files.forget(DIRECTORY, "004");
        assert!(files.open(DIRECTORY, "004", &info("\"1\"")).is_none());
        // The store has not answered yet, so nothing is known from what was requested.
        assert!(files.answered(DIRECTORY, "005", Duration::from_secs(1)).is_none());
    }

    #[test]
    fn what_cannot_be_pinned_or_found_is_left_out() {
        let mut files = SmallFiles::default();
        files.begin_listing(DIRECTORY);
        files.note_listed(DIRECTORY, "b", &info("\"1\""));
        files.note_listed(DIRECTORY, "a", &info("\"1\""));
        files.note_listed(DIRECTORY + 1, "c", &info("\"1\""));
        files.note_listed(DIRECTORY, "d", &ObjectInfo { tag: None, ..info("") });
        files.note_listed(DIRECTORY, "e", &ObjectInfo { size: 2 << 20, ..info("\"1\"") });
        let names: Vec<_> = files.names.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b"]);
    }
}
