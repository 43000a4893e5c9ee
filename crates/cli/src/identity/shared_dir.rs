//! Runs in: server, sidecar (root until they are confined).
//!
//! The directory of a layer store that several processes use. All of them run as one user, and
//! other users cannot enter it. Files in it are never given to another user: some other process may
//! be using them.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, chown},
    path::{Path, PathBuf},
};

use super::{DataDirError, ServerUser};

/// The directories of a store.
const PARTS: [&str; 3] = ["sha256", "index", "new"];
/// The files beside them.
const FILES: [&str; 2] = ["store-id", "server-lock"];

/// Creates the directory if it is missing, and checks that it is the user's.
pub(crate) fn make_shared_store(path: &Path, user: &ServerUser) -> Result<(), DataDirError> {
    make_own_directory(path, user)?;
    for entry in fs::read_dir(path).map_err(io_error(path))? {
        let name = entry.map_err(io_error(path))?.file_name().to_string_lossy().into_owned();
        if !FILES.contains(&name.as_str()) && !PARTS.contains(&name.as_str()) {
            return Err(DataDirError::Foreign { path: path.to_owned(), found: name });
        }
    }
    PARTS.iter().try_for_each(|part| make_own_directory(&path.join(part), user))
}

fn make_own_directory(path: &Path, user: &ServerUser) -> Result<(), DataDirError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io_error(path))?;
    let found = fs::symlink_metadata(path).map_err(io_error(path))?;
    if !found.is_dir() {
        return Err(io_error(path)(io::ErrorKind::NotADirectory.into()));
    }
    // Root made it a moment ago, or an operator did as root.
    if let (ServerUser::Become { uid, gid, .. }, 0) = (user, found.uid()) {
        return chown(path, Some(*uid), Some(*gid)).map_err(io_error(path));
    }
    if found.uid() != user.uid() {
        return Err(DataDirError::Owner { path: path.to_owned(), owner: found.uid() });
    }
    Ok(())
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> DataDirError {
    let path: PathBuf = path.to_owned();
    move |source| DataDirError::Io { path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_other_files_is_no_layer_store() {
        let directory = tempfile::tempdir().unwrap();
        let user = ServerUser::choose(None).unwrap();
        let store = directory.path().join("store");
        make_shared_store(&store, &user).unwrap();
        fs::write(store.join(FILES[0]), "id").unwrap();
        make_shared_store(&store, &user).unwrap();
        fs::write(store.join("thesis.tex"), "").unwrap();
        let error = make_shared_store(&store, &user).unwrap_err().to_string();
        assert!(error.contains("thesis.tex"), "{error}");
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(make_shared_store(&file, &user).is_err());
    }
}
