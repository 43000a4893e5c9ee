//! Runs in: spawner (root). Mounts images: unpacked layers below, a small tree of the spawner on top.
//!
//! An image is mounted once, read-only, and is the lower directory of every cell that starts on it.
//! Its layers belong to the server's user on the host; an idmapped mount shows them as root's. The
//! server names an image by a number, and layers by plain names in the directory of layers.

use std::{
    collections::BTreeSet,
    ffi::CString,
    fs, io,
    path::{Path, PathBuf},
};

use cloche_jail::sys;
use rustix::{
    fs::CWD,
    mount::{MoveMountFlags, UnmountFlags},
};

use super::{
    home_mounter::{self, TEMPORARY_MOUNTS, apply_overlay_marks, check_layer_name},
    host_ids::HostIds,
    image, io_error,
};
use crate::protocol::ImageNumber;

/// The directory of image trees in the spawner's root.
const IMAGES: &str = "/image";
/// The tree that lies over every image.
const SKELETON: &str = "/image/over";
/// The most layers of an image: what other engines take, and far below the kernel's limit.
const MAX_LAYERS: usize = 127;
/// The most images that are mounted at once. Each new cell copies the list of mounts.
const MAX_IMAGES: usize = 64;
/// Read-only, no set-user-id, no devices.
const READ_ONLY: u64 = 1 | 2 | 4;

/// The mounted images.
pub(super) struct ImageMounter {
    /// The host ids of the cells; `None` if the spawner is not root.
    ids: Option<HostIds>,
    mounted: BTreeSet<ImageNumber>,
}

impl ImageMounter {
    pub(super) const fn new(ids: Option<HostIds>) -> Self {
        Self { ids, mounted: BTreeSet::new() }
    }

    /// The tree of a mounted image.
    pub(super) fn find_tree(&self, image: ImageNumber) -> io::Result<PathBuf> {
        if !self.mounted.contains(&image) {
            return Err(io::Error::other("the image of this cell is not mounted"));
        }
        Ok(tree_of(image))
    }

    /// Mounts an image.
    pub(super) fn mount(&mut self, image: ImageNumber, layers: &[String]) -> io::Result<()> {
        self.check_request(image, layers)?;
        layers.iter().try_for_each(|name| apply_overlay_marks(name, self.ids.is_some()))?;
        let owner = self.ids.map(HostIds::image_owner);
        if !Path::new(SKELETON).exists() {
            fs::create_dir(SKELETON)?;
            image::build_skeleton(Path::new(SKELETON), owner)?;
        }
        let tree = tree_of(image);
        fs::create_dir(&tree)?;
        let view = home_mounter::open_layers_view(owner)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&view, "", CWD, TEMPORARY_MOUNTS[0], flags)?;
        let mounted = mount_overlay(&tree, layers, self.ids.is_some());
        // The overlay has its own reference to the view.
        rustix::mount::unmount(TEMPORARY_MOUNTS[0], UnmountFlags::DETACH)?;
        if let Err(error) = mounted {
            let _ = fs::remove_dir(&tree);
            return Err(error);
        }
        self.mounted.insert(image);
        Ok(())
    }

    fn check_request(&self, image: ImageNumber, layers: &[String]) -> io::Result<()> {
        let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        layers.iter().try_for_each(|name| check_layer_name(name))?;
        match layers.len() {
            _ if self.mounted.contains(&image) => refuse("the image is mounted already".to_owned()),
            _ if self.mounted.len() >= MAX_IMAGES => {
                refuse(format!("no more than {MAX_IMAGES} images can be in use at once"))
            }
            0 => refuse("the image has no layers".to_owned()),
            1..=MAX_LAYERS => Ok(()),
            many => refuse(format!("the image has {many} layers; {MAX_LAYERS} are allowed")),
        }
    }

    /// Unmounts an image. Cells that run on it keep it until they end.
    pub(super) fn unmount(&mut self, image: ImageNumber) {
        if self.mounted.remove(&image) {
            let tree = tree_of(image);
            let _ = rustix::mount::unmount(&tree, UnmountFlags::DETACH);
            let _ = fs::remove_dir(tree);
        }
    }
}

fn tree_of(ImageNumber(number): ImageNumber) -> PathBuf {
    Path::new(IMAGES).join(number.to_string())
}

/// Mounts the layers, which are in the temporary view, below the spawner's own tree. No attribute
/// of a layer redirects a lookup, because an image is made by others.
fn mount_overlay(tree: &Path, layers: &[String], privileged: bool) -> io::Result<()> {
    let newest_first: Vec<&str> = layers.iter().rev().map(String::as_str).collect();
    let options = match privileged {
        true => "redirect_dir=nofollow,metacopy=off,index=off,xino=off",
        false => "userxattr",
    };
    let options = format!("lowerdir={SKELETON}:{},{options}", newest_first.join(":"));
    let [options, target] = [options, tree.display().to_string()].map(CString::new);
    // The names of layers are relative, so that the list stays short.
    rustix::process::chdir(TEMPORARY_MOUNTS[0])?;
    let mounted = sys::mount(c"overlay", &target?, c"overlay", READ_ONLY, &options?);
    rustix::process::chdir("/")?;
    mounted.map_err(io_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_refused_without_layers_with_too_many_and_with_names_that_are_paths() {
        let check = |layers: &[String]| {
            let refused = ImageMounter::new(None).check_request(ImageNumber(1), layers);
            refused.map_err(|error| error.to_string())
        };
        let names = |count: usize| (0..count).map(|at| format!("{at}")).collect::<Vec<_>>();
        assert_eq!(check(&names(MAX_LAYERS)), Ok(()));
        assert_eq!(check(&[]), Err("the image has no layers".to_owned()));
        assert!(check(&names(MAX_LAYERS + 1)).unwrap_err().contains("128 layers"));
        for name in ["..", "a/b", "/usr", "a:b", "a,b", "", "A"] {
            assert!(check(&[name.to_owned()]).is_err(), "{name:?}");
        }
    }
}
