//! Runs in: server (no capabilities). Removes volumes, and what dead servers have left in them.

use std::{fs, io, os::fd::OwnedFd};

use cloche_model::VolumeId;
use rustix::{
    fs::{Dir, Mode, OFlags},
    io::Errno,
};

use super::{VolumeStore, open_beneath, volume_store::UPLOADS};

impl VolumeStore {
    /// Removes a volume and its files; no error if it does not exist.
    ///
    /// # Errors
    /// When something of it cannot be removed.
    pub fn remove(&self, id: &VolumeId) -> io::Result<()> {
        let path = self.path_of(id);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                // A guest may have made a directory read-only.
                allow_removal(&self.open_root(id)?)?;
                fs::remove_dir_all(&path)
            }
            removed => removed,
        }
    }

    /// Removes what uploads have left that a dead server did not finish. No server may use the
    /// volumes yet.
    ///
    /// # Errors
    /// When something of it cannot be removed.
    pub fn remove_partial_uploads(&self) -> io::Result<()> {
        for volume in fs::read_dir(&self.directory)? {
            match fs::remove_dir_all(volume?.path().join(UPLOADS)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Gives the owner every right to the directories below one, so that their entries can be removed.
fn allow_removal(directory: &OwnedFd) -> io::Result<()> {
    rustix::fs::fchmod(directory, Mode::RWXU)?;
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match open_beneath(directory, name.to_bytes(), flags, Mode::empty()) {
            Ok(below) => allow_removal(&below)?,
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cloche_model::ByteSize;

    use super::*;

    #[test]
    fn a_volume_with_read_only_directories_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let store = VolumeStore::open(directory.path().join("volumes")).unwrap();
        let id: VolumeId = "vol_a".parse().unwrap();
        store.create(&id).unwrap();
        store.write_file(&id, ByteSize(1000), "d/e/f", &mut &[7; 10][..]).unwrap();
        let files = directory.path().join("volumes/vol_a/files");
        let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(files.join("d/e"), mode(0o500)).unwrap();
        fs::set_permissions(files.join("d"), mode(0o500)).unwrap();
        allow_removal(&store.open_root(&id).unwrap()).unwrap();
        let found = fs::metadata(files.join("d/e")).unwrap();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o777, 0o700);
        store.remove(&id).unwrap();
        assert!(!files.exists());
    }
}
