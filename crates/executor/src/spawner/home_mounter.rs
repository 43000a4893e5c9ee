//! Runs in: spawner (root). Mounts the homes of threads: layers below, a tmpfs for writes on top.
//!
//! The layers are unpacked on the host and belong to the server's user. A cell sees them through an
//! idmapped mount that shows them as its guest's, as the lower directories of an overlay. What it
//! writes goes to its own tmpfs, which is the diff. The cell has run nothing when its home is
//! mounted.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use cloche_jail::sys::{self, Errno};
use cloche_layers::OWNER_EXEC;
use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags},
    mount::{
        FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags,
        UnmountFlags,
    },
};

use super::{
    home_target::HomeTarget, host_ids::HostIds, host_setup, io_error, user_xattrs::read_user_xattrs,
};
use crate::protocol::{HomeRequest, is_plain_name};

/// Where the unpacked layers are in the spawner's root.
pub(crate) const LAYERS: &str = "/layers";
/// Temporary mount points, for kernels that accept only mounted directories as parts of an overlay.
pub(super) const TEMPORARY_MOUNTS: [&str; 2] = ["/bench/view", "/bench/scratch"];
/// Bytes and files beyond the request, for what the run itself is given and for deleting files.
const SLACK: (u64, u64) = (256 << 10, 64);
/// The most bytes of one mount option.
const MAX_OPTION_LEN: usize = 255;
/// Options that make an overlay more like one file system. Directories of lower layers can be
/// renamed. A file with several hard links stays one file when it is changed. A change of mode or
/// name, or the removal of one of several hard links, does not copy the content. Inode numbers are
/// those of the layers.
const OVERLAY_OPTIONS: [(&str, &str); 4] =
    [("redirect_dir", "on"), ("index", "on"), ("metacopy", "on"), ("xino", "off")];

/// The result of mounting a home.
pub(super) enum HomeMountOutcome {
    /// It is mounted. `upper` will have what the run writes; `merged` is the overlay, if the home
    /// has layers.
    Mounted { upper: OwnedFd, merged: Option<OwnedFd> },
    /// A directory has the name of a file that the run needs.
    Blocked(String),
}

/// Mounts homes.
pub(super) struct HomeMounter {
    /// The host ids of guests; `None` if the spawner is not root.
    ids: Option<HostIds>,
    /// The mounts that show the layers as each guest's, by slot.
    views: BTreeMap<u32, OwnedFd>,
    /// Whether the kernel accepts only mounted directories as parts of an overlay.
    wants_mounted: bool,
    /// Whether the kernel clones only mounts that are in a namespace, as Linux before 6.15.
    clones_mounted: bool,
    /// The mount namespace of the spawner, to return to.
    own_namespace: Option<File>,
}

impl HomeMounter {
    pub(super) fn new(ids: Option<HostIds>) -> Self {
        let own_namespace = File::open("/proc/self/ns/mnt").ok();
        Self {
            ids,
            views: BTreeMap::new(),
            wants_mounted: false,
            clones_mounted: false,
            own_namespace,
        }
    }

    /// Mounts a home in a cell.
    pub(super) fn mount(
        &mut self,
        target: &HomeTarget<'_>,
        request: &HomeRequest,
    ) -> io::Result<HomeMountOutcome> {
        let slot = target.slot;
        request.layers.iter().try_for_each(|name| check_layer_name(name))?;
        request.layers.iter().try_for_each(|name| apply_overlay_marks(name, self.ids.is_some()))?;
        let scratch = self.make_scratch(slot, request)?;
        let upper = open_dir(scratch.as_fd(), "upper")?;
        let home = if request.layers.is_empty() {
            self.clone_upper(&scratch, &upper)?
        } else {
            copy_root_metadata(&upper, &request.layers)?;
            self.mount_overlay(slot, &scratch, &request.layers)?
        };
        let top = open_dir(&home, ".")?;
        let found = rustix::fs::fstat(&top)?;
        for name in &request.placed {
            if !clear_input_path(&top, name)? {
                return Ok(HomeMountOutcome::Blocked(name.clone()));
            }
            self.create_input_file(slot, &top, name)?;
        }
        rustix::fs::futimens(&top, &timestamps_of(&found))?;
        self.attach_home(target, &home, request.elsewhere)?;
        let merged = (!request.layers.is_empty()).then_some(top);
        Ok(HomeMountOutcome::Mounted { upper, merged })
    }

    /// Makes an empty file that belongs to the guest, if there is none. The guest will write it
    /// even if its home is read-only to it, and the home does not count as changed.
    fn create_input_file(&self, slot: u32, top: &OwnedFd, name: &str) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(top, name, flags, Mode::from_raw_mode(0o644)) {
            Err(rustix::io::Errno::EXIST) => return Ok(()),
            file => file?,
        };
        if let Some(ids) = self.ids {
            let guest = ids.guest_id(slot);
            let (uid, gid) = (Uid::from_raw(guest), Gid::from_raw(guest));
            rustix::fs::fchown(&file, Some(uid), Some(gid))?;
        }
        Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?)
    }

    /// A mount that shows the layers as files of the guest in this slot.
    fn open_guest_view(&self, slot: u32) -> io::Result<OwnedFd> {
        open_layers_view(self.ids.map(|ids| ids.guest_id(slot)))
    }

    /// A tmpfs for the diff, with the quota as its size.
    fn make_scratch(&self, slot: u32, request: &HomeRequest) -> io::Result<OwnedFd> {
        let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let (bytes, inodes) = (request.bytes + SLACK.0, request.inodes + SLACK.1);
        for (key, value) in
            [("size", bytes.to_string()), ("nr_inodes", inodes.to_string()), ("mode", "711".into())]
        {
            rustix::mount::fsconfig_set_string(&context, key, value)?;
        }
        let scratch = create_mount(&context)?;
        for name in ["upper", "work"] {
            rustix::fs::mkdirat(&scratch, name, Mode::from_raw_mode(0o755))?;
        }
        if let Some(ids) = self.ids {
            let guest = ids.guest_id(slot);
            let (uid, gid) = (Uid::from_raw(guest), Gid::from_raw(guest));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(&scratch, "upper", Some(uid), Some(gid), flags)?;
        }
        Ok(scratch)
    }

    /// The upper directory as a mount of its own: the home of a thread that has no layers.
    fn clone_upper(&mut self, scratch: &OwnedFd, upper: &OwnedFd) -> io::Result<OwnedFd> {
        if !self.clones_mounted {
            match clone_mount(upper.as_fd()) {
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.0) => {}
                cloned => return cloned,
            }
            self.clones_mounted = true;
        }
        let [_, at] = TEMPORARY_MOUNTS;
        let _mounts = TemporaryMounts::mount_parts([(scratch, at)])?;
        clone_mount(open_dir(CWD, &format!("{at}/upper"))?.as_fd())
    }

    /// An overlay of the layers, with the scratch tmpfs on top.
    fn mount_overlay(
        &mut self,
        slot: u32,
        scratch: &OwnedFd,
        names: &[String],
    ) -> io::Result<OwnedFd> {
        if !self.wants_mounted {
            if !self.views.contains_key(&slot) {
                self.views.insert(slot, self.open_guest_view(slot)?);
            }
            let scratch_at = format!("/proc/self/fd/{}", scratch.as_raw_fd());
            match create_overlay(self.views[&slot].as_fd(), &scratch_at, names, self.ids.is_some())
            {
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.0) => {}
                mounted => return mounted,
            }
            self.wants_mounted = true;
            self.views.clear();
        }
        let view = self.open_guest_view(slot)?;
        let [view_at, scratch_at] = TEMPORARY_MOUNTS;
        let _mounts = TemporaryMounts::mount_parts([(&view, view_at), (scratch, scratch_at)])?;
        create_overlay(open_dir(CWD, view_at)?.as_fd(), scratch_at, names, self.ids.is_some())
    }

    /// Moves the mount over the cell's home. Its other directories get the rest of the disk limit.
    fn attach_home(
        &self,
        target: &HomeTarget<'_>,
        home: &OwnedFd,
        elsewhere: (u64, u64),
    ) -> io::Result<()> {
        let own = self.own_namespace.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let (home_at, scratch_at) = target.place.paths();
        sys::setns(target.cell.as_raw_fd(), sys::CLONE_NEWNS).map_err(io_error)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        let moved = rustix::mount::move_mount(home, "", CWD, home_at, flags);
        let moved = moved.and_then(|()| resize_scratch(scratch_at, elsewhere));
        if sys::setns(own.as_raw_fd(), sys::CLONE_NEWNS).is_err() {
            // Nothing can be done right in the wrong mount namespace: the supervisor starts a new
            // loop.
            sys::exit(1);
        }
        Ok(moved?)
    }
}

/// A mount that shows the unpacked layers as files of one user; as what they are if there is none.
pub(super) fn open_layers_view(owner: Option<u32>) -> io::Result<OwnedFd> {
    let layers = open_dir(CWD, LAYERS)?;
    let view = clone_mount(layers.as_fd())?;
    if let Some(to) = owner {
        // The owner of the directory is the server's user, who unpacks the layers.
        let unpacker = rustix::fs::fstat(&layers)?;
        let from = (unpacker.st_uid, unpacker.st_gid);
        let namespace =
            host_setup::create_idmap_namespace(host_setup::IdMapping { from, to, count: 1 })?;
        sys::idmap_mount(view.as_raw_fd(), namespace.as_raw_fd()).map_err(io_error)?;
    }
    Ok(view)
}

/// Changes the size of the tmpfs that a cell came with. Runs in the cell's mount namespace.
fn resize_scratch(at: &str, (bytes, inodes): (u64, u64)) -> rustix::io::Result<()> {
    let context = rustix::mount::fspick(CWD, at, FsPickFlags::FSPICK_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, "size", bytes.to_string())?;
    rustix::mount::fsconfig_set_string(&context, "nr_inodes", inodes.to_string())?;
    rustix::mount::fsconfig_reconfigure(&context)
}

/// Parts of a home while they are mounted, for kernels that need it. Dropping it unmounts them.
struct TemporaryMounts;

impl TemporaryMounts {
    fn mount_parts<const N: usize>(mounts: [(&OwnedFd, &str); N]) -> io::Result<Self> {
        let guard = Self;
        for (mount, path) in mounts {
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            rustix::mount::move_mount(mount, "", CWD, path, flags)?;
        }
        Ok(guard)
    }
}

impl Drop for TemporaryMounts {
    fn drop(&mut self) {
        for path in TEMPORARY_MOUNTS {
            let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
        }
    }
}

fn create_overlay(
    view: BorrowedFd<'_>,
    scratch: &str,
    names: &[String],
    privileged: bool,
) -> io::Result<OwnedFd> {
    let newest_first: Vec<&str> = names.iter().rev().map(String::as_str).collect();
    let lower = newest_first.join(":");
    if lower.len() > MAX_OPTION_LEN {
        return Err(io::Error::other(format!(
            "a home cannot have {} layers: their names exceed a mount option",
            names.len()
        )));
    }
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |key: &str, value: &str| rustix::mount::fsconfig_set_string(&context, key, value);
    // In their directory the names of the layers are short.
    rustix::process::fchdir(view)?;
    let result = set("lowerdir", &lower)
        .and_then(|()| set("upperdir", &format!("{scratch}/upper")))
        .and_then(|()| set("workdir", &format!("{scratch}/work")))
        .and_then(|()| match privileged {
            true => OVERLAY_OPTIONS.iter().try_for_each(|(key, value)| set(key, value)),
            false => rustix::mount::fsconfig_set_flag(&context, "userxattr"),
        })
        .map_err(io::Error::from)
        .and_then(|()| create_mount(&context));
    rustix::process::chdir("/")?;
    result
}

/// Removes what a placed file could not overwrite: symbolic links, files with other hard links, and
/// files without write permission. Returns false for a directory, which may have files of the user.
fn clear_input_path(home: &OwnedFd, name: &str) -> io::Result<bool> {
    if !is_plain_name(name) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a placed file needs a plain name",
        ));
    }
    let found = match rustix::fs::statat(home, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(rustix::io::Errno::NOENT) => return Ok(true),
        Err(errno) => return Err(errno.into()),
    };
    match rustix::fs::FileType::from_raw_mode(found.st_mode) {
        rustix::fs::FileType::Directory => Ok(false),
        rustix::fs::FileType::RegularFile if found.st_mode & 0o200 != 0 && found.st_nlink == 1 => {
            Ok(true)
        }
        _ => Ok(rustix::fs::unlinkat(home, name, AtFlags::empty()).map(|()| true)?),
    }
}

/// Gives the upper directory the mode, the attributes and the times of the newest layer's root. Its
/// owner can always enter it, or no program in it could be started.
fn copy_root_metadata(upper: &OwnedFd, layers: &[String]) -> io::Result<()> {
    let Some(newest) = layers.last() else { return Ok(()) };
    let newest = open_dir(CWD, &format!("{LAYERS}/{newest}"))?;
    let stat = rustix::fs::fstat(&newest)?;
    rustix::fs::fchmod(upper, Mode::from_raw_mode(stat.st_mode & 0o7777 | OWNER_EXEC))?;
    for (name, value) in read_user_xattrs(&newest)? {
        rustix::fs::fsetxattr(upper, &name[..], &value, XattrFlags::empty())?;
    }
    Ok(rustix::fs::futimens(upper, &timestamps_of(&stat))?)
}

fn timestamps_of(stat: &Stat) -> Timestamps {
    let time = |seconds, nanos| Timespec { tv_sec: seconds, tv_nsec: nanos };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec as _),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec as _),
    }
}

/// Creates the file system that was configured, as a detached mount.
fn create_mount(context: &OwnedFd) -> io::Result<OwnedFd> {
    rustix::mount::fsconfig_create(context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(rustix::mount::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// A detached clone of the mount that a directory is in, from that directory on.
fn clone_mount(directory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(rustix::mount::open_tree(directory, "", flags)?)
}

fn open_dir(at: impl AsFd, path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, path, flags, Mode::empty())?)
}

/// Checks the short name of a layer. It cannot be a path or a mount option.
pub(crate) fn check_layer_name(name: &str) -> io::Result<()> {
    let plain = |c: char| c.is_ascii_digit() || c.is_ascii_lowercase();
    if name.is_empty() || name.len() > 12 || !name.chars().all(plain) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a layer has a name of 1 to 12 digits and lower-case letters",
        ));
    }
    Ok(())
}

/// Sets the overlay attributes of a new layer's directories, for which the server has no
/// privileges. It does so once: the list is removed afterwards.
pub(super) fn apply_overlay_marks(name: &str, privileged: bool) -> io::Result<()> {
    let list = Path::new(LAYERS).join(format!("{name}.marks"));
    let marks = match fs::read(&list) {
        Ok(marks) => marks,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let layer = open_dir(CWD, &format!("{LAYERS}/{name}"))?;
    let prefix = if privileged { "trusted" } else { "user" };
    let malformed =
        || io::Error::new(io::ErrorKind::InvalidData, "the list of overlay marks is malformed");
    let mut rest = marks.as_slice();
    while let Some((kind, after)) = rest.split_first() {
        let mut parts = after.splitn(3, |byte| *byte == 0);
        let (path, value) = (parts.next(), parts.next());
        let (Some(path), Some(value), Some(after)) = (path, value, parts.next()) else {
            return Err(malformed());
        };
        let (mark, value) = match kind {
            b'o' => ("opaque", &b"y"[..]),
            b'r' => ("redirect", value),
            _ => return Err(malformed()),
        };
        let at = cloche_layers::directory_beneath(&layer, path)?;
        let attribute = format!("{prefix}.overlay.{mark}");
        rustix::fs::fsetxattr(&at, attribute, value, XattrFlags::empty())?;
        rest = after;
    }
    fs::remove_file(list)
}
