//! Runs in: spawner (an ordinary user). The directory of one contained cell: made before it starts,
//! removed when all its processes are gone.
//!
//! A guest may leave any tree: very deep, with directories that have no permissions. So directories
//! are moved up before they are emptied, and no path grows.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use crate::protocol::SITE_DIR;

/// Python executes it at its start, by its name. Landlock makes packages unreadable; this makes an
/// import say that there is no such module.
const HIDE_PACKAGES: &str = "import os, sys
own = os.path.dirname(__file__)
sys.path[:] = [path for path in sys.path if path != own and not (
    path.startswith('/usr/') and path.endswith(('/dist-packages', '/site-packages')))]
";

/// The directory of a cell, with a home and a `tmp` in it.
pub(super) struct ScratchDir {
    path: PathBuf,
}

impl ScratchDir {
    /// Makes the directory, which must not exist yet.
    pub(super) fn create(path: PathBuf, hides_packages: bool) -> io::Result<Self> {
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700).create(&path)?;
        let made = Self { path };
        for below in [made.home(), made.path.join("tmp")] {
            builder.mode(0o755).create(below)?;
        }
        if hides_packages {
            let site = made.path.join(SITE_DIR);
            builder.create(&site)?;
            fs::write(site.join("usercustomize.py"), HIDE_PACKAGES)?;
        }
        Ok(made)
    }

    /// The home of the guest.
    pub(super) fn home(&self) -> PathBuf {
        self.path.join("home")
    }

    /// Removes it with everything in it.
    pub(super) fn remove(&self) {
        if let Err(error) = remove_tree(&self.path) {
            tracing::warn!(%error, "could not remove the directory of a cell");
        }
    }
}

/// Removes a directory with everything in it, without following links.
pub(super) fn remove_tree(top: &Path) -> io::Result<()> {
    let mut moved = 0_u64;
    let mut emptied = vec![top.to_owned()];
    while let Some(directory) = emptied.last().cloned() {
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
        let found = emptied.len();
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                fs::remove_file(entry.path())?;
            } else if directory == top {
                emptied.push(entry.path());
            } else if fs::remove_dir(entry.path()).is_err() {
                // To move a directory changes its entry `..`, so it has to be writable.
                fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o700))?;
                moved += 1;
                let up = top.join(format!(".{moved}"));
                // A guest may have used that name.
                if fs::symlink_metadata(&up).is_err() {
                    fs::rename(entry.path(), &up)?;
                    emptied.push(up);
                }
            }
        }
        if emptied.len() == found && fs::remove_dir(&directory).is_ok() {
            emptied.pop();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_any_depth_and_mode_is_removed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "x").unwrap();
        let base = tempfile::tempdir().unwrap();
        let directory = ScratchDir::create(base.path().join("cell"), true).unwrap();
        let home = directory.home();
        std::os::unix::fs::symlink(outside.path(), home.join("link")).unwrap();
        fs::create_dir_all(home.join("a/.1/b")).unwrap();
        fs::write(home.join("a/.1/b/file"), "x").unwrap();
        let mut deep = fs::File::open(&home).unwrap();
        for _ in 0..5000 {
            use rustix::fs::{Mode, OFlags, mkdirat, openat};
            mkdirat(&deep, "d", Mode::RWXU).unwrap();
            deep = openat(&deep, "d", OFlags::DIRECTORY, Mode::empty()).unwrap().into();
        }
        fs::set_permissions(home.join("a/.1"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(&home, fs::Permissions::from_mode(0o000)).unwrap();
        directory.remove();
        assert!(fs::symlink_metadata(base.path().join("cell")).is_err());
        assert!(outside.path().join("kept").exists());
    }
}
