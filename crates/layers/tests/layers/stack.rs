//! Real overlays over unpacked layers, mounted as the spawner mounts them.

use std::{
    collections::HashSet,
    fs::{self, Permissions},
    os::{
        fd::AsFd,
        unix::{
            ffi::OsStrExt,
            fs::{MetadataExt, PermissionsExt},
        },
    },
    path::{Path, PathBuf},
};

use crate::support::pack_upper;
use cloche_layers::{Layers, UnpackedStack, UpperDir, copy_up_hard_links};
use cloche_test_support::skip;
use rustix::{
    fs::{Timespec, Timestamps, UTIME_OMIT, XattrFlags},
    mount::{MountFlags, UnmountFlags, mount, unmount},
};

/// An overlay with an empty upper directory on a tmpfs. Dropping it unmounts it.
pub(crate) struct Overlay {
    dir: PathBuf,
    lowers: Vec<PathBuf>,
}

impl Overlay {
    /// Mounts a stack at `dir`. Skips the test with a message if the kernel does not allow it.
    pub(crate) fn mount(dir: &Path, layers: &Layers, stack: &UnpackedStack) -> Option<Self> {
        fs::create_dir_all(dir).unwrap();
        if let Err(error) = mount("tmpfs", dir, "tmpfs", MountFlags::empty(), None) {
            skip(&format!("this test needs to mount a tmpfs and an overlay: {error}"));
            return None;
        }
        let at = |name: &&str| layers.cache_dir().join(name);
        let overlay = Self {
            dir: dir.to_owned(),
            lowers: stack.layer_names().iter().rev().map(at).collect(),
        };
        for name in ["upper", "work", "merged", "nothing"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        overlay.lowers.iter().for_each(|lower| apply_marks(lower));
        let mut lowers: Vec<_> =
            overlay.lowers.iter().map(|lower| lower.display().to_string()).collect();
        lowers.push(dir.join("nothing").display().to_string());
        if let Some((mode, mtime)) = stack.root_metadata() {
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: Timespec {
                    tv_sec: mtime.seconds,
                    tv_nsec: i64::from(mtime.nanos),
                },
            };
            let upper = fs::File::open(dir.join("upper")).unwrap();
            upper.set_permissions(Permissions::from_mode(mode)).unwrap();
            rustix::fs::futimens(&upper, &times).unwrap();
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={},redirect_dir=on,index=on,metacopy=on,xino=off",
            lowers.join(":"),
            dir.join("upper").display(),
            dir.join("work").display()
        );
        let options = std::ffi::CString::new(options).unwrap();
        let target = overlay.merged();
        mount("overlay", target, "overlay", MountFlags::empty(), Some(&*options)).unwrap();
        Some(overlay)
    }

    pub(crate) fn merged(&self) -> PathBuf {
        self.dir.join("merged")
    }

    /// Packs the upper directory, with all names of files that were changed under one of them.
    pub(crate) fn pack(&self) -> Vec<u8> {
        let merged = fs::File::open(self.merged()).unwrap();
        if fs::read_dir(self.dir.join("work/index")).unwrap().next().is_some() {
            copy_up_hard_links(merged.as_fd(), &self.several()).unwrap();
        }
        let upper = fs::File::open(self.dir.join("upper")).unwrap();
        pack_upper(UpperDir { dir: upper.as_fd(), merged: Some(merged.as_fd()) })
    }

    /// The inode numbers of files that have several names in a layer.
    fn several(&self) -> HashSet<u64> {
        let (mut found, mut waiting) = (HashSet::new(), self.lowers.clone());
        while let Some(directory) = waiting.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let meta = fs::symlink_metadata(&path).unwrap();
                if meta.is_dir() {
                    waiting.push(path);
                } else if meta.nlink() > 1 {
                    found.insert(meta.ino());
                }
            }
        }
        found
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = unmount(self.merged(), UnmountFlags::DETACH);
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
    }
}

/// Applies the marks of a layer, as the privileged spawner does before it mounts the layer.
fn apply_marks(layer: &Path) {
    let path = layer.with_extension("marks");
    let Ok(marks) = fs::read(&path) else { return };
    let mut fields = marks.split(|&byte| byte == 0);
    while let (Some([kind, directory @ ..]), Some(value)) = (fields.next(), fields.next()) {
        let directory = layer.join(std::ffi::OsStr::from_bytes(directory));
        let (name, value) = match kind {
            b'o' => ("trusted.overlay.opaque", &b"y"[..]),
            b'r' => ("trusted.overlay.redirect", value),
            other => panic!("a mark of the kind {other}"),
        };
        rustix::fs::setxattr(directory, name, value, XattrFlags::empty()).unwrap();
    }
    fs::remove_file(path).unwrap();
}
