//! Runs in: mount server (no capabilities). What requests of the kernel and answers to them have in
//! common.

use std::{ffi::OsStr, time::SystemTime};

use fuser::{FileAttr, FileType, Generation, ReplyAttr, ReplyEmpty, ReplyEntry, TimeOrNow};
use rustix::io::Errno;

use super::mount::{ObjectHandle, ObjectMount};
use crate::server::attributes::fuse_errno;

/// A name that can be part of a key. Keys are UTF-8.
pub(super) fn name_text(name: &OsStr) -> Result<String, Errno> {
    name.to_str().map(str::to_owned).ok_or(Errno::ILSEQ)
}

pub(super) fn reply_entry(reply: ReplyEntry, mount: &ObjectMount, found: Result<FileAttr, Errno>) {
    match found {
        Ok(attributes) => reply.entry(&mount.ttl(), &attributes, Generation(0)),
        Err(errno) => reply.error(fuse_errno(errno)),
    }
}

pub(super) fn reply_empty(reply: ReplyEmpty, done: Result<(), Errno>) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(fuse_errno(errno)),
    }
}

pub(super) fn reply_attributes(
    reply: ReplyAttr,
    mount: &ObjectMount,
    found: Result<FileAttr, Errno>,
) {
    match found {
        Ok(attributes) => reply.attr(&mount.ttl(), &attributes),
        Err(errno) => reply.error(fuse_errno(errno)),
    }
}

pub(super) fn moment(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

pub(super) fn kind(is_directory: bool) -> FileType {
    if is_directory { FileType::Directory } else { FileType::RegularFile }
}

pub(super) async fn list(
    mount: &ObjectMount,
    handle: u64,
    offset: u64,
    with_attributes: bool,
    each: impl FnMut(u64, &str, bool, Option<&FileAttr>) -> bool + Send,
) -> Result<(), Errno> {
    let handle = mount.handles.lock().get(handle)?;
    let ObjectHandle::Directory(list) = handle else { return Err(Errno::NOTDIR) };
    list.lock().await.list(mount, offset, with_attributes, each).await
}
