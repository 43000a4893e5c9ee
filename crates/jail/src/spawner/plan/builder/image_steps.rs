//! Runs in: spawner (root).
//!
//! How the directories of the image are shown in a cell, in a template and in its cells.

use std::path::{Path, PathBuf};

use super::{
    NamedSteps, PlanBuilder, SECRETS_DIR, TEMPLATE_IMAGE, bind_step, directory_step, mount_step,
    ms, remount_step,
};

/// Where a template mounts the first directory of its image a second time, for its cells. Only if
/// directories are hidden: the cells could not put an overlay on a tree with mounts in it.
const TEMPLATE_USR: &str = "/opt";

/// The `resolv.conf` of cells with a network, in every tree that cells have as their root.
pub const RESOLVER_FILE: &str = "/etc/cloche.resolv.conf";

impl PlanBuilder<'_> {
    pub(in crate::spawner::plan) fn mount_image_overlays(&self) -> NamedSteps {
        self.mount_overlays_of(&self.spec.image.binds)
    }

    /// The image of a forked cell, from the template's second mount where that exists.
    pub(in crate::spawner::plan) fn mount_forked_image_overlays(&self) -> NamedSteps {
        let mut binds = self.spec.image.binds.clone();
        if let Some((source, _)) = binds.first_mut().filter(|_| self.hides_directories()) {
            *source = TEMPLATE_USR.into();
        }
        self.mount_overlays_of(&binds)
    }

    fn hides_directories(&self) -> bool {
        !self.spec.image.hidden.is_empty()
    }

    fn mount_overlays_of(&self, binds: &[(PathBuf, PathBuf)]) -> NamedSteps {
        let overlay = |(source, target): &(PathBuf, PathBuf)| {
            // The kernel refuses an overlay of a single layer, so there is an empty one below it.
            let empty = self.image.join("mnt");
            let options = format!("lowerdir={}:{},userxattr", source.display(), empty.display());
            let flags = ms::RDONLY | ms::NOSUID | ms::NODEV;
            let step =
                mount_step("overlay", &self.path_in_root(target), "overlay", flags, &options);
            (format!("image:{}", target.display()), step)
        };
        binds.iter().map(overlay).collect()
    }

    /// Shows directories of the image empty: an empty directory of the image covers them.
    pub(in crate::spawner::plan) fn hide_directories(&self) -> NamedSteps {
        let empty = self.image.join("mnt");
        let flags = ms::RDONLY | ms::NOSUID | ms::NODEV;
        let hide = |path: &PathBuf| {
            let (inside, name) = (self.path_in_root(path), path.display());
            [
                (format!("hide:{name}"), bind_step(&empty, &inside)),
                (format!("read-only:{name}"), remount_step(&inside, flags)),
            ]
        };
        self.spec.image.hidden.iter().flat_map(hide).collect()
    }

    /// A cell with a network asks the resolver of its gateway. Every tree of ours has the file that
    /// says so beside the one for cells without a network.
    pub(in crate::spawner::plan) fn name_resolver(&self) -> NamedSteps {
        if !self.spec.network {
            return Vec::new();
        }
        let [from, to] =
            [RESOLVER_FILE, "/etc/resolv.conf"].map(|path| self.path_in_root(Path::new(path)));
        vec![("network:resolver".into(), bind_step(&from, &to))]
    }

    /// The second mount of the image's first directory, for the cells of a template.
    pub(in crate::spawner::plan) fn bind_image_for_cells(&self) -> NamedSteps {
        let Some((source, _)) = self.spec.image.binds.first().filter(|_| self.hides_directories())
        else {
            return Vec::new();
        };
        let second = self.path_in_root(Path::new(TEMPLATE_USR));
        let flags = ms::RDONLY | ms::NOSUID | ms::NODEV;
        vec![
            ("image:cells".into(), bind_step(source, &second)),
            ("read-only:cells".into(), remount_step(&second, flags)),
        ]
    }

    /// A template's root: the image as it is. Its cells put their overlays on a second bind mount
    /// of it without submounts: the kernel does not let them uncover what is below a mount.
    pub(in crate::spawner::plan) fn bind_root(&self) -> NamedSteps {
        let flags = ms::RDONLY | ms::NOSUID | ms::NODEV;
        let second = self.path_in_root(Path::new(TEMPLATE_IMAGE));
        vec![
            ("root:bind".into(), bind_step(self.image, &self.root)),
            ("read-only:/".into(), remount_step(&self.root, flags)),
            ("image:/".into(), bind_step(self.image, &second)),
            ("read-only:image".into(), remount_step(&second, flags)),
        ]
    }

    pub(in crate::spawner::plan) fn bind_image(&self) -> NamedSteps {
        let mut steps = Vec::new();
        for (source, target) in &self.spec.image.binds {
            let (inside, name) = (self.path_in_root(target), target.display());
            steps.push((format!("image:{name}"), bind_step(source, &inside)));
            let flags = ms::RDONLY | ms::NOSUID | ms::NODEV;
            steps.push((format!("read-only:{name}"), remount_step(&inside, flags)));
        }
        steps
    }

    /// Where the guest's process writes injected credentials before the program starts: in memory,
    /// outside of the home, and gone with the cell.
    pub(in crate::spawner::plan) fn bind_secrets_dir(&self) -> NamedSteps {
        let inside = self.path_in_root(Path::new(SECRETS_DIR));
        vec![("secrets".into(), bind_step(&self.stage.join("secrets"), &inside))]
    }

    /// Where the guest's process writes the certificate authorities of its job, and where programs
    /// look for those of the system.
    pub(in crate::spawner::plan) fn bind_trust_dirs(&self) -> NamedSteps {
        let Some(first) = self.spec.trust_dirs.first() else { return Vec::new() };
        let source = self.stage.join("trust");
        let mut steps = vec![(
            format!("trust:{}", first.display()),
            directory_step(&source, 0o755, self.spec.guest),
        )];
        steps.extend(self.spec.trust_dirs.iter().map(|directory| {
            (
                format!("trust:{}", directory.display()),
                bind_step(&source, &self.path_in_root(directory)),
            )
        }));
        steps
    }
}
