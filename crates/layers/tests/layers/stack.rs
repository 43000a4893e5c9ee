//! Real overlays over unpacked layers, mounted the way the sandbox does it.

use std::{
    fs::{self, Permissions},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

use crate::support::skip;
use cloche_layers::{Layers, Mountable};
use rustix::{
    fs::{Timespec, Timestamps, UTIME_OMIT, XattrFlags},
    mount::{MountFlags, UnmountFlags, mount, unmount},
};

/// An overlay with an empty upper directory on a tmpfs. Unmounted when it is dropped.
pub(crate) struct Overlay {
    room: PathBuf,
}

impl Overlay {
    /// Mounts a stack at `room`. None, loudly, where this kernel does not let us.
    pub(crate) fn mount(room: &Path, layers: &Layers, stack: &Mountable) -> Option<Self> {
        fs::create_dir_all(room).unwrap();
        if let Err(error) = mount("tmpfs", room, "tmpfs", MountFlags::empty(), None) {
            skip(&format!("this test needs to mount a tmpfs and an overlay: {error}"));
            return None;
        }
        let overlay = Self { room: room.to_owned() };
        for name in ["upper", "work", "merged", "nothing"] {
            fs::create_dir(room.join(name)).unwrap();
        }
        let mut lowers: Vec<String> = Vec::new();
        for name in stack.names() {
            apply_marks(&layers.cache_dir().join(name));
            lowers.insert(0, layers.cache_dir().join(name).display().to_string());
        }
        lowers.push(room.join("nothing").display().to_string());
        if let Some((mode, mtime)) = stack.root() {
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: Timespec {
                    tv_sec: mtime.seconds,
                    tv_nsec: i64::from(mtime.nanos),
                },
            };
            let upper = fs::File::open(room.join("upper")).unwrap();
            upper.set_permissions(Permissions::from_mode(mode)).unwrap();
            rustix::fs::futimens(&upper, &times).unwrap();
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={},redirect_dir=on,index=off,metacopy=off,xino=off",
            lowers.join(":"),
            room.join("upper").display(),
            room.join("work").display()
        );
        let options = std::ffi::CString::new(options).unwrap();
        let target = overlay.merged();
        mount("overlay", target, "overlay", MountFlags::empty(), Some(&*options)).unwrap();
        Some(overlay)
    }

    pub(crate) fn merged(&self) -> PathBuf {
        self.room.join("merged")
    }

    /// What was written.
    pub(crate) fn upper(&self) -> PathBuf {
        self.room.join("upper")
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = unmount(self.merged(), UnmountFlags::DETACH);
        let _ = unmount(&self.room, UnmountFlags::DETACH);
    }
}

/// What a privileged process does with the marks of a layer before it is mounted.
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
