//! Runs in: mount server (no capabilities). What requests of the kernel and answers to them have in
//! common.

use std::{
    ffi::OsStr,
    future::Future,
    panic::{self, AssertUnwindSafe},
    task::{Context, Waker},
    time::SystemTime,
};

use fuser::{FileAttr, FileType, Generation, ReplyAttr, ReplyEmpty, ReplyEntry, TimeOrNow};
use rustix::io::Errno;

use super::mount::{ObjectHandle, ObjectMount};
use crate::server::attributes::fuse_errno;

/// Answers a request; without a runtime it is dropped, which answers with `EIO`. What can be
/// answered at once is answered by this thread: a wake-up of another one takes longer than most
/// answers. What must wait for the store goes on in a task of its own.
pub(super) fn answer_at_once(mount: &ObjectMount, work: impl Future<Output = ()> + Send + 'static) {
    let Some(runtime) = mount.runtime.get() else { return };
    let mut work = Box::pin(work);
    let _entered = runtime.enter();
    let mut context = Context::from_waker(Waker::noop());
    // A defect in one answer must not end this thread, which reads all requests.
    let polled = panic::catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut context)));
    if polled.is_ok_and(|polled| polled.is_pending()) {
        // The task polls again, with its own waker.
        runtime.spawn(work);
    }
}

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
