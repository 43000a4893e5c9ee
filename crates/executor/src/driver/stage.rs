//! Runs in: driver (root).
//!
//! Mounts what the runtime starts from: the root, and one tmpfs with everything that the guest can
//! write. All of it is in the mount namespace of this cell and ends with it.

use std::{
    ffi::CString,
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, chown},
    },
    path::Path,
};

use cloche_jail::sys;
use cloche_model::OciRuntime;

use super::DriverSetup;

/// One tmpfs holds everything that the guest can write, so one size limits all of it.
pub(crate) const STAGE: &str = "/stage";
/// The guest's home, before the runtime mounts it.
pub(crate) const STAGE_HOME: &str = "/stage/home";
/// The guest's secret files, before the runtime mounts them.
pub(super) const STAGE_SECRETS: &str = "/stage/secrets";
/// The root of the cell.
pub(super) const STAGE_ROOT: &str = "/stage/root";
/// A tmpfs for the bundle and the state of the runtime.
pub(super) const RUN: &str = "/run";
/// Where runc looks for cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// mount(2) flags.
pub(super) const RDONLY: u64 = 1;
pub(super) const NOSUID: u64 = 2;
pub(super) const NODEV: u64 = 4;
pub(super) const NOEXEC: u64 = 8;
const BIND_REC: u64 = 4096 | 16384;

/// Mounts the `/proc` of this pid namespace.
pub(super) fn mount_proc() -> io::Result<()> {
    mount_at("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC, "")
}

/// Mounts everything else.
pub(super) fn build_stage(setup: &DriverSetup) -> io::Result<()> {
    mount_at("run", RUN, "tmpfs", NOSUID | NODEV, "size=16m,mode=711")?;
    let (bytes, inodes) = setup.disk;
    let bytes = bytes - setup.shared_memory_bytes();
    let options = format!("size={bytes},nr_inodes={inodes},mode=755");
    mount_at("scratch", STAGE, "tmpfs", NOSUID | NODEV, &options)?;
    for (name, mode, owner) in [
        ("root", 0o755, setup.image_owner),
        ("upper", 0o755, setup.image_owner),
        ("home", 0o755, setup.guest),
        ("data", 0o755, setup.image_owner),
        ("secrets", 0o700, setup.guest),
        ("tmp", 0o1777, setup.image_owner),
        ("shm", 0o1777, setup.image_owner),
    ] {
        let path = Path::new(STAGE).join(name);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        chown(&path, Some(owner), Some(owner))?;
    }
    mount_root(setup)?;
    match setup.runtime {
        OciRuntime::Crun => Ok(()),
        // It starts only where it sees cgroups. This cell is in its cgroup already, and runc can
        // make none in a read-only mount.
        OciRuntime::Runc => {
            mount_at("cgroup2", CGROUPS, "cgroup2", RDONLY | NOSUID | NODEV | NOEXEC, "")
        }
        // Its gofer mounts below `/dev` of the root, which the sandbox itself does not show.
        OciRuntime::Runsc => {
            bind_dir(&setup.image.dev.display().to_string(), &format!("{STAGE_ROOT}/dev"))
        }
    }
}

/// The image under overlays of this cell: no other cell shares its inodes, and so no locks or
/// watches on them.
fn mount_root(setup: &DriverSetup) -> io::Result<()> {
    let (flags, empty) = (RDONLY | NOSUID | NODEV, Path::new(STAGE).join("upper"));
    // runsc mounts the root once more, without the other flags, which the kernel lets it keep only.
    // No program of the host runs from there: its guests see files through its own kernel.
    let root_flags = if setup.runtime == OciRuntime::Runsc { RDONLY } else { flags };
    let overlay = |lower: &Path, at: &str, flags: u64| {
        // The kernel refuses an overlay of a single layer, so there is an empty one below it.
        let options = format!("lowerdir={}:{},userxattr", lower.display(), empty.display());
        mount_at("overlay", at, "overlay", flags, &options)
    };
    overlay(&setup.image.tree, STAGE_ROOT, root_flags)?;
    for (source, target) in &setup.image.binds {
        overlay(source, &format!("{STAGE_ROOT}{}", target.display()), flags)?;
    }
    Ok(())
}

/// Shows a directory at a second place.
pub(super) fn bind_dir(source: &str, target: &str) -> io::Result<()> {
    mount_at(source, target, "", BIND_REC, "")
}

pub(super) fn mount_at(
    source: &str,
    target: &str,
    kind: &str,
    flags: u64,
    data: &str,
) -> io::Result<()> {
    let text = |value: &str| CString::new(Path::new(value).as_os_str().as_bytes());
    let mounted = sys::mount(&text(source)?, &text(target)?, &text(kind)?, flags, &text(data)?);
    mounted.map_err(|errno| io::Error::from_raw_os_error(errno.0))
}
