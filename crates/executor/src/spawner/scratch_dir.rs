//! Runs in: spawner (an ordinary user). The directory of one contained cell: made before it starts,
//! removed when all its processes are gone.
//!
//! A guest may leave any tree: very deep, with directories that have no permissions. So directories
//! are moved up before they are emptied, and no path grows.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
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
}

/// Directories of cells that are gone, with what guests have left in them. They are removed bit by
/// bit: the spawner has other cells to watch, and a guest may leave a million files.
#[derive(Default)]
pub(super) struct PendingRemovals(Vec<TreeRemoval>);

impl PendingRemovals {
    /// The longest that the spawner removes files before it looks at its cells again.
    const SLICE: Duration = Duration::from_millis(5);

    pub(super) fn push(&mut self, directory: ScratchDir) {
        self.0.push(TreeRemoval::new(directory.path));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes for a while. Newer directories come first, because most have few files.
    pub(super) fn continue_removal(&mut self) {
        let until = Instant::now() + Self::SLICE;
        while let Some(removal) = self.0.last_mut() {
            match removal.continue_until(Some(until)) {
                Ok(false) => return,
                Ok(true) => {}
                Err(error) => tracing::warn!(%error, "could not remove the directory of a cell"),
            }
            self.0.pop();
        }
    }
}

/// Removes a directory with everything in it, without following links.
pub(super) fn remove_tree(top: &Path) -> io::Result<()> {
    TreeRemoval::new(top.to_owned()).continue_until(None).map(|_| ())
}

/// The removal of a directory, without following links. What it has not seen or removed is found
/// again when it continues.
struct TreeRemoval {
    top: PathBuf,
    /// Directories to empty, the next one last.
    emptied: Vec<PathBuf>,
    moved: u64,
}

impl TreeRemoval {
    fn new(top: PathBuf) -> Self {
        Self { emptied: vec![top.clone()], top, moved: 0 }
    }

    /// Removes until then. Returns whether everything is removed.
    fn continue_until(&mut self, until: Option<Instant>) -> io::Result<bool> {
        while let Some(directory) = self.emptied.last().cloned() {
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
            let found = self.emptied.len();
            for entry in fs::read_dir(&directory)? {
                if until.is_some_and(|until| until <= Instant::now()) {
                    return Ok(false);
                }
                self.remove_entry(&directory, &entry?)?;
            }
            if self.emptied.len() == found && fs::remove_dir(&directory).is_ok() {
                self.emptied.pop();
            }
        }
        Ok(true)
    }

    fn remove_entry(&mut self, directory: &Path, entry: &fs::DirEntry) -> io::Result<()> {
        if !entry.file_type()?.is_dir() {
            return fs::remove_file(entry.path());
        }
        if directory == self.top {
            self.emptied.push(entry.path());
        } else if fs::remove_dir(entry.path()).is_err() {
            // To move a directory changes its entry `..`, so it has to be writable.
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o700))?;
            self.moved += 1;
            let up = self.top.join(format!(".{}", self.moved));
            // A guest may have used that name.
            if fs::symlink_metadata(&up).is_err() {
                fs::rename(entry.path(), &up)?;
                self.emptied.push(up);
            }
        }
        Ok(())
    }
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
        let mut pending = PendingRemovals::default();
        pending.push(directory);
        while !pending.is_empty() {
            pending.continue_removal();
        }
        assert!(fs::symlink_metadata(base.path().join("cell")).is_err());
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn a_removal_that_is_interrupted_at_every_entry_ends() {
        let base = tempfile::tempdir().unwrap();
        let top = base.path().join("cell");
        for name in ["home/a/b/c", "home/d/e", "tmp", ".1/x"] {
            fs::create_dir_all(top.join(name)).unwrap();
            (0..20).for_each(|n| fs::write(top.join(format!("{name}/{n}")), "x").unwrap());
        }
        let mut removal = TreeRemoval::new(top.clone());
        let past = Instant::now();
        assert!(!removal.continue_until(Some(past)).unwrap(), "it keeps to its time");
        let mut slices = 0;
        while !removal.continue_until(Some(Instant::now() + Duration::from_micros(50))).unwrap() {
            slices += 1;
            assert!(slices < 10_000, "{:?}", removal.emptied);
        }
        assert!(!top.exists());
    }
}
