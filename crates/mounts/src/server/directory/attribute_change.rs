//! Runs in: mount server (no capabilities). Changes of size, mode and times.

use fuser::{FileAttr, FileType, TimeOrNow};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::{Errno, Result},
};

use super::{
    DirectoryMount,
    handles::OpenMountFile,
    host_files::{kind_of, stat_file, timestamps},
};
use crate::volume::{Beneath, open_beneath};

/// What is changed of a file.
#[derive(Debug, Default)]
pub(super) struct AttributeChange {
    pub(super) mode: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) accessed: Option<TimeOrNow>,
    pub(super) modified: Option<TimeOrNow>,
}

impl DirectoryMount {
    pub(super) fn change(
        &self,
        node: u64,
        handle: Option<u64>,
        change: &AttributeChange,
    ) -> Result<FileAttr> {
        let open = self.open_file(node, handle);
        let path = self.nodes.lock().path_of(node);
        if let Some(size) = change.size {
            if size > self.most_bytes {
                return Err(Errno::FBIG);
            }
            match open.as_ref().filter(|open| open.writes) {
                Some(open) => self.quota.resize(&open.file, size)?,
                None => {
                    let path = path.as_ref().map_err(|error| *error)?;
                    let flags = OFlags::WRONLY | OFlags::NONBLOCK;
                    let file = open_beneath(&self.root, path, flags, Mode::empty())?;
                    self.quota.resize(&file, size)?;
                }
            }
        }
        if let Some(mode) = change.mode {
            self.change_mode(open.as_deref(), &path, mode)?;
        }
        if change.accessed.is_some() || change.modified.is_some() {
            let times = timestamps(change.accessed, change.modified);
            match (&path, &open) {
                (Ok(path), _) if path.is_empty() => rustix::fs::futimens(&self.root, &times)?,
                (Ok(path), _) => {
                    let at = Beneath::open_parent(&self.root, path)?;
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    rustix::fs::utimensat(&at.parent, at.name, &times, flags)?;
                }
                (Err(_), Some(open)) => rustix::fs::futimens(&open.file, &times)?,
                (Err(error), None) => return Err(*error),
            }
        }
        self.attributes(node, handle)
    }

    fn change_mode(
        &self,
        open: Option<&OpenMountFile>,
        path: &Result<Vec<u8>>,
        mode: u32,
    ) -> Result<()> {
        match (open, path) {
            (Some(open), _) => {
                rustix::fs::fchmod(&open.file, self.modes.to_host(mode, FileType::RegularFile))
            }
            (None, Ok(path)) => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK;
                let file = open_beneath(&self.root, path, flags, Mode::empty())?;
                let kind = kind_of(&stat_file(&file)?)?;
                rustix::fs::fchmod(&file, self.modes.to_host(mode, kind))
            }
            (None, Err(error)) => Err(*error),
        }
    }
}
