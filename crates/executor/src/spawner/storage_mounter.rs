//! Runs in: spawner (root). Mounts storage in a cell, and forks the process that serves it.
//!
//! The spawner makes the mounts and knows nothing of what is behind them: it passes the FUSE
//! connections and the server's socket on, and keeps neither.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use cloche_jail::{
    cgroup::CgroupEntry,
    sys::{self, PrctlOption},
};
use cloche_model::MOUNTS_ROOT;
use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, OFlags, StatxFlags, Uid},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags},
};

use super::{
    host_ids::HostIds,
    io_error,
    mount_server_process::{IdleMountServer, MountServerStart, start_mount_server},
};
use crate::protocol::{MountServerUser, StorageMountRequest, is_plain_name};

/// The device of FUSE in the spawner's root.
const FUSE_DEVICE: &str = "/fuse";
/// The most mounts of one cell.
const MAX_MOUNTS: usize = 16;

/// Why storage could not be mounted, and which.
pub(super) struct StorageMountError {
    pub(super) slug: String,
    pub(super) source: io::Error,
}

impl StorageMountError {
    pub(super) fn without_slug(why: &str) -> Self {
        Self { slug: String::new(), source: io::Error::other(why.to_owned()) }
    }
}

/// Mounts storage.
pub(super) struct StorageMounter {
    /// The host ids of guests; `None` if the spawner is not root.
    ids: Option<HostIds>,
    /// The mount namespace of the spawner, to return to.
    own_namespace: Option<File>,
    /// The kernel's directory of the devices behind mounts.
    devices: Option<OwnedFd>,
}

/// The cell in which storage is mounted.
pub(super) struct MountTarget<'a> {
    pub(super) slot: u32,
    /// The pidfd of its pid 1.
    pub(super) cell: BorrowedFd<'a>,
    pub(super) user: MountServerUser,
    /// The cgroup of its mount server.
    pub(super) cgroup: &'a CgroupEntry,
    /// A mount server in that cgroup that waits for its mounts.
    pub(super) idle: Option<IdleMountServer>,
}

/// A FUSE connection and its mount, which is attached nowhere yet.
pub(super) struct FuseMount {
    pub(super) connection: OwnedFd,
    pub(super) mount: OwnedFd,
    /// The file with the kernel's read-ahead of the mount, if that can be changed.
    pub(super) read_ahead: Option<OwnedFd>,
}

impl StorageMounter {
    pub(super) fn new(ids: Option<HostIds>, devices: Option<OwnedFd>) -> Self {
        Self { ids, own_namespace: File::open("/proc/self/ns/mnt").ok(), devices }
    }

    /// Mounts storage in a cell, and starts its mount server. Returns the pidfd of the mount server.
    pub(super) fn mount(
        &self,
        mut target: MountTarget<'_>,
        requests: &[StorageMountRequest],
        fds: &[OwnedFd],
    ) -> Result<OwnedFd, StorageMountError> {
        let [control] = fds else {
            return Err(StorageMountError::without_slug("a mount server needs one socket"));
        };
        if requests.len() > MAX_MOUNTS {
            return Err(StorageMountError::without_slug("there are too many mounts"));
        }
        let ready = target.idle.as_mut().and_then(IdleMountServer::take_mount);
        let mut mounts: Vec<_> = ready.into_iter().map(|mount| (mount, None)).collect();
        for request in requests.iter().skip(mounts.len()) {
            let failed = |source| StorageMountError { slug: request.slug.clone(), source };
            let FuseMount { connection, mount, read_ahead } =
                self.make_fuse_mount().map_err(failed)?;
            mounts.push((mount, Some((connection, read_ahead))));
        }
        let (mounts, connections): (Vec<_>, Vec<_>) = mounts.into_iter().unzip();
        self.attach(target.cell, requests, &mounts)?;
        let started = self.start_server(control, connections, target);
        started.map_err(|source| StorageMountError { slug: requests[0].slug.clone(), source })
    }

    /// Makes a mount that is attached nowhere.
    pub(super) fn make_fuse_mount(&self) -> io::Result<FuseMount> {
        let (connection, mount) = create_fuse_mount()?;
        let read_ahead = self.open_read_ahead(&mount);
        Ok(FuseMount { connection, mount, read_ahead })
    }

    /// Moves the mounts to directories of `/data` in the cell.
    fn attach(
        &self,
        cell: BorrowedFd<'_>,
        requests: &[StorageMountRequest],
        mounts: &[OwnedFd],
    ) -> Result<(), StorageMountError> {
        let entering = StorageMountError::without_slug;
        let own = self.own_namespace.as_ref().ok_or_else(|| entering("there is no namespace"))?;
        sys::setns(cell.as_raw_fd(), sys::CLONE_NEWNS)
            .map_err(|_| entering("the cell cannot be entered"))?;
        let mut attached = Ok(());
        for (request, mount) in requests.iter().zip(mounts) {
            let path = format!("{MOUNTS_ROOT}/{}", request.slug);
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            let done = prepare_to_attach(request, mount).and_then(|()| {
                self.make_mount_point(&path)?;
                Ok(rustix::mount::move_mount(mount, "", CWD, &*path, flags)?)
            });
            if let Err(source) = done {
                attached = Err(StorageMountError { slug: request.slug.clone(), source });
                break;
            }
        }
        if sys::setns(own.as_raw_fd(), sys::CLONE_NEWNS).is_err() {
            // Nothing can be done right in the wrong mount namespace: the supervisor starts a new
            // loop.
            sys::exit(1);
        }
        attached
    }

    /// Makes a directory in the cell's `/data`. No file there can have an owner that is not mapped
    /// in the cell's user namespace, so the owner of the image makes it.
    fn make_mount_point(&self, path: &str) -> io::Result<()> {
        let make = || rustix::fs::mkdir(path, Mode::from_raw_mode(0o755));
        let Some(ids) = self.ids else { return Ok(make()?) };
        let owner = ids.image_owner();
        let become_ids = |uid: u32, gid: u32| -> rustix::io::Result<()> {
            let (root, root_group) = (Uid::ROOT, Gid::ROOT);
            // The way back needs the user first.
            if uid == 0 {
                rustix::thread::set_thread_res_uid(root, Uid::from_raw(uid), root)?;
            }
            rustix::thread::set_thread_res_gid(root_group, Gid::from_raw(gid), root_group)?;
            if uid != 0 {
                rustix::thread::set_thread_res_uid(root, Uid::from_raw(uid), root)?;
            }
            Ok(())
        };
        become_ids(owner, owner)?;
        let made = make();
        if become_ids(0, 0).is_err() {
            sys::exit(1);
        }
        // A change of user takes this away, and new cells inherit it.
        let _ = sys::prctl(PrctlOption::Dumpable, 1);
        Ok(made?)
    }

    /// Opens the file with the kernel's read-ahead of a mount, which only root can.
    fn open_read_ahead(&self, mount: &OwnedFd) -> Option<OwnedFd> {
        let devices = self.devices.as_ref()?;
        // Nobody answers requests of the kernel yet, so this must not cause one.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(mount, "", flags, StatxFlags::empty()).ok()?;
        let path = format!("{}:{}/read_ahead_kb", found.stx_dev_major, found.stx_dev_minor);
        rustix::fs::openat(devices, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// Starts the mount server. If it opens files of volumes, its user is the server's, which owns
    /// them.
    fn start_server(
        &self,
        control: &OwnedFd,
        connections: Vec<Option<(OwnedFd, Option<OwnedFd>)>>,
        target: MountTarget<'_>,
    ) -> io::Result<OwnedFd> {
        let user = match (self.ids, target.user) {
            (None, _) => None,
            (Some(ids), MountServerUser::Own) => {
                let id = ids.mount_server_id(target.slot);
                Some((id, id))
            }
            (Some(_), MountServerUser::Server) => {
                let peer = rustix::net::sockopt::socket_peercred(control)?;
                Some((peer.uid.as_raw(), peer.gid.as_raw()))
            }
        };
        let (connections, files): (Vec<_>, Vec<_>) = connections.into_iter().flatten().unzip();
        // Their order says whose they are.
        let files: Vec<_> = files.into_iter().collect::<Option<_>>().unwrap_or_default();
        let fds = std::iter::once(control).chain(&connections).chain(&files);
        let fds: Vec<_> = fds.map(AsFd::as_fd).collect();
        let guest = self.ids.map_or(0, |ids| ids.guest_id(target.slot));
        let start =
            MountServerStart { user, guest, connections: connections.len(), fds: fds.len() };
        match target.idle {
            Some(idle) => idle.serve(start, &fds),
            None => start_mount_server(start, &fds, target.cgroup),
        }
    }
}

/// Opens the kernel's directory of the devices behind mounts, before a new root hides it.
pub(super) fn open_device_directory() -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open("/sys/devices/virtual/bdi", flags, Mode::empty()).ok()
}

/// Makes the device of storage mounts, which no cell sees. A host without it mounts no storage.
pub(super) fn make_fuse_node(path: &Path, privileged: bool) {
    const MAJOR_MINOR: (u32, u32) = (10, 229);
    const BIND: u64 = 4096;
    let Ok(node) = CString::new(path.as_os_str().as_bytes()) else { return };
    if privileged {
        let _ = sys::mknod(&node, 0o020_600, MAJOR_MINOR.0, MAJOR_MINOR.1);
    } else if std::fs::write(path, "").is_ok() {
        let _ = sys::mount(c"/dev/fuse", &node, c"", BIND, c"");
    }
}

/// A name and a mode, of a mount that goes into a cell.
fn prepare_to_attach(request: &StorageMountRequest, mount: &OwnedFd) -> io::Result<()> {
    if !is_plain_name(&request.slug) {
        return Err(io::Error::other("the mount has no plain name"));
    }
    match request.read_only {
        true => sys::make_mount_read_only(mount.as_raw_fd()).map_err(io_error),
        false => Ok(()),
    }
}

/// Makes a FUSE connection and its mount.
fn create_fuse_mount() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let connection = rustix::fs::open(FUSE_DEVICE, flags, Mode::empty()).map_err(|error| {
        io::Error::other(format!("this host has no FUSE device: {}", io::Error::from(error)))
    })?;
    let context = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // Every user may use it, and the kernel checks modes by the attributes of each file, so its own
    // user is never looked at. The cell of a mount that is made ahead is not known.
    for (key, value) in [
        ("source", "cloche"),
        ("subtype", "cloche"),
        ("fd", &connection.as_raw_fd().to_string()),
        ("rootmode", "40000"),
        ("user_id", "0"),
        ("group_id", "0"),
    ] {
        rustix::mount::fsconfig_set_string(&context, key, value)?;
    }
    for flag in ["allow_other", "default_permissions"] {
        rustix::mount::fsconfig_set_flag(&context, flag)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let mount = rustix::mount::fsmount(&context, flags, attributes)?;
    Ok((connection, mount))
}
