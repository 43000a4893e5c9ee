//! Runs in: mount server (no capabilities). How the mode of a guest's file is kept on the host.
//!
//! The mount server has no privilege, so it must be able to read every file and to search and list
//! every directory as their owner. In a volume, what the guest took from the owner is marked by bits
//! that have no other use there. A directory of the host may use these bits itself, so there the
//! owner keeps the rights.

use fuser::FileType;
use rustix::fs::Mode;

/// A file without the owner's right to read; a directory without the right to search.
const STICKY: u32 = 0o1000;
/// A directory without the owner's right to list.
const SET_USER: u32 = 0o4000;
const READ: u32 = 0o400;
const WRITE: u32 = 0o200;
const SEARCH: u32 = 0o100;
const PERMISSIONS: u32 = 0o777;

/// The rights of the owner that the host keeps, each with its mark.
const FILE_MARKS: &[(u32, u32)] = &[(READ, STICKY)];
const DIRECTORY_MARKS: &[(u32, u32)] = &[(READ, SET_USER), (SEARCH, STICKY)];

/// How modes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptModes {
    /// Exactly, with marks: in a volume.
    Marked,
    /// As far as the owner keeps its rights: in a directory of the host.
    Plain,
}

fn marks_of(kind: FileType) -> &'static [(u32, u32)] {
    match kind {
        FileType::Directory => DIRECTORY_MARKS,
        FileType::RegularFile => FILE_MARKS,
        _ => &[],
    }
}

impl KeptModes {
    /// The mode on the host for one that a guest sets.
    pub(super) fn to_host(self, mode: u32, kind: FileType) -> Mode {
        let mut kept = mode & PERMISSIONS;
        for (right, mark) in marks_of(kind) {
            if kept & right == 0 && self == Self::Marked {
                kept |= mark;
            }
            kept |= right;
        }
        if self == Self::Plain && kind == FileType::Directory {
            kept |= WRITE;
        }
        Mode::from_raw_mode(kept)
    }

    /// The mode that a guest sees for one on the host.
    pub(super) fn to_guest(self, mode: u32, kind: FileType) -> u32 {
        let mut seen = mode & PERMISSIONS;
        for (right, mark) in marks_of(kind) {
            if mode & mark != 0 && self == Self::Marked {
                seen &= !right;
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_in_a_volume_survives_and_the_owner_keeps_what_the_mount_server_needs() {
        for kind in [FileType::RegularFile, FileType::Directory] {
            let needed = if kind == FileType::Directory { READ | SEARCH } else { READ };
            for mode in 0..=PERMISSIONS {
                let host = KeptModes::Marked.to_host(mode, kind).as_raw_mode();
                assert_eq!(host & needed, needed, "{mode:o}");
                assert_eq!(KeptModes::Marked.to_guest(host, kind), mode, "{mode:o}");
                let plain = KeptModes::Plain.to_host(mode, kind).as_raw_mode();
                assert_eq!(plain & !PERMISSIONS, 0, "{mode:o}");
            }
        }
        // The bits of a directory of the host that another program has set mean nothing here.
        assert_eq!(KeptModes::Plain.to_guest(0o5755, FileType::Directory), 0o755);
    }
}
