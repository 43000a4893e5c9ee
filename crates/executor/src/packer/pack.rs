//! Runs in: packer (`DAC_READ_SEARCH` and `SYS_ADMIN`). Drops what it does not need, checks that a
//! guest wrote the directory, packs it, and reports.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use cloche_jail::{
    seccomp,
    sys::{self, Errno, PrctlOption},
};
use cloche_layers::{ContentLimits, OverlayXattrs, UpperDir, pack_upper_dir};
use cloche_model::HomePath;
use rustix::{
    fs::{Mode, OFlags},
    thread::{CapabilitySet, CapabilitySets},
};
use sha2::{Digest, Sha256};

use super::hard_links;
use crate::protocol::{PackReport, PackRequest, PlacedDigest, is_plain_name};

/// The magic number of a tmpfs, to which guests write.
const TMPFS: u64 = 0x0102_1994;
/// The magic number of an overlay, which shows a home with layers.
const OVERLAY: u64 = 0x794c_7630;

/// To read files of any mode, and the marks of an overlay.
const READING: CapabilitySet = CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::SYS_ADMIN);
/// Also to make an overlay copy up files of a guest.
const COMPLETING: CapabilitySet = READING.union(CapabilitySet::FOWNER);

/// The file descriptors of one request.
#[derive(Clone, Copy)]
pub(crate) struct PackInput<'a> {
    upper: UpperDir<'a>,
    archive: &'a OwnedFd,
    report: &'a OwnedFd,
}

impl<'a> PackInput<'a> {
    /// In the order in which the server sends them: the upper directory, the pipe for the archive,
    /// the pipe for the report, and the merged directory if there is one.
    pub(crate) fn from_fds(fds: &'a [OwnedFd]) -> io::Result<Self> {
        let ([directory, archive, report], rest) = fds
            .split_first_chunk()
            .ok_or_else(|| io::Error::other("a packer needs three file descriptors"))?;
        let upper = UpperDir { dir: directory.as_fd(), merged: rest.first().map(AsFd::as_fd) };
        Ok(Self { upper, archive, report })
    }
}

/// Installs the packer's filter. Every call that reading, writing and ending does not need then
/// kills the process.
pub(crate) fn install_filter() -> io::Result<()> {
    sys::prctl(PrctlOption::NoNewPrivs, 1).map_err(io_error)?;
    sys::install_logged_seccomp(seccomp::packer_filter()).map_err(io_error)
}

fn io_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

/// Drops every capability that no packer needs.
pub(crate) fn keep_all_capabilities() -> io::Result<()> {
    keep_capabilities(COMPLETING)
}

/// Drops all capabilities but these.
fn keep_capabilities(keep: CapabilitySet) -> io::Result<()> {
    let sets =
        CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Packs one directory and reports. `first_guest` is the first host id of guests; without it the
/// spawner is an ordinary user, and the packer has no capability to drop.
pub(crate) fn pack_and_report(
    request: &PackRequest,
    PackInput { upper, archive, report }: PackInput<'_>,
    first_guest: Option<u32>,
) -> io::Result<()> {
    check_guest_owned(upper.dir, TMPFS, first_guest)?;
    upper.merged.map_or(Ok(()), |merged| check_guest_owned(merged, OVERLAY, first_guest))?;
    let privileged = first_guest.is_some();
    if privileged {
        if let Some(merged) = upper.merged {
            keep_capabilities(COMPLETING)?;
            hard_links::complete_hard_links(upper.dir, merged)?;
        }
        keep_capabilities(READING)?;
    }
    let unchanged: Vec<&PlacedDigest> =
        request.placed.iter().filter(|placed| is_unchanged(upper.dir, placed)).collect();
    let skip = unchanged.iter().filter(|placed| placed.leave_out);
    let options = cloche_layers::PackOptions {
        skip: skip.map(|placed| OsString::from(&placed.name)).collect(),
        markers: if privileged { OverlayXattrs::Trusted } else { OverlayXattrs::User },
        home_mode: request.home_mode,
        most: request.most.map(|(file, total)| ContentLimits { file, total }),
    };
    let packed = pack_upper_dir(upper, &options, File::from(archive.try_clone()?))?;
    // The reader sees the end of the archive now, and need not wait for the end of this process. No
    // other process has this end of the pipe open.
    sys::close(archive.as_raw_fd());
    let said = PackReport {
        unchanged: unchanged.iter().map(|placed| placed.name.clone()).collect(),
        lost_attributes: packed.attributes_left_out > 0,
        cut: packed.cut.iter().map(|(path, size)| (HomePath::text_of(path), *size)).collect(),
    };
    File::from(report.try_clone()?).write_all(&serde_json::to_vec(&said)?)?;
    sys::close(report.as_raw_fd());
    Ok(())
}

/// Refuses a directory that is not on a file system of homes or does not belong to a guest: the
/// server could pass any directory that it can open.
fn check_guest_owned(
    directory: BorrowedFd<'_>,
    wanted: u64,
    first_guest: Option<u32>,
) -> io::Result<()> {
    let kind = rustix::fs::fstatfs(directory)?.f_type;
    let owner = rustix::fs::fstat(directory)?.st_uid;
    let belongs_to_guest = first_guest.is_none_or(|first| owner >= first);
    if kind as u64 != wanted || !belongs_to_guest {
        let error = "the directory is not the home of a guest";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
    }
    Ok(())
}

/// Whether a placed file still has its content, its mode and its only name.
fn is_unchanged(directory: BorrowedFd<'_>, placed: &PlacedDigest) -> bool {
    // The packer can read what the server may not, so it compares only files at the top of the
    // home.
    if !is_plain_name(&placed.name) {
        return false;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(directory, placed.name.as_str(), flags, Mode::empty());
    let Ok(file) = opened else { return false };
    let Ok(stat) = rustix::fs::fstat(&file) else { return false };
    let is_regular = stat.st_mode & 0o170_000 == 0o100_000;
    if !is_regular || stat.st_mode & 0o7777 != 0o644 || stat.st_nlink != 1 {
        return false;
    }
    let (mut file, mut hash) = (File::from(file), Sha256::new());
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return hash.finalize()[..] == placed.digest,
            Ok(len) => hash.update(&buffer[..len]),
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn placed(name: &str) -> PlacedDigest {
        PlacedDigest {
            name: name.to_owned(),
            digest: Sha256::digest(b"secret").into(),
            leave_out: true,
        }
    }

    fn open(path: &Path) -> OwnedFd {
        File::open(path).unwrap().into()
    }

    #[test]
    fn files_outside_the_home_are_not_compared_with_what_the_server_says() {
        let outside = tempfile::tempdir().unwrap();
        let home = outside.path().join("home");
        fs::create_dir_all(home.join("below")).unwrap();
        let secrets = [outside.path().join("secret"), home.join("below/own"), home.join("own")];
        for secret in &secrets {
            fs::write(secret, "secret").unwrap();
            fs::set_permissions(secret, std::os::unix::fs::PermissionsExt::from_mode(0o644))
                .unwrap();
        }
        let home = open(&home);
        let absolute = secrets[0].to_str().unwrap();
        for name in ["../secret", "./../secret", absolute, "below/own", "./own", "", ".", ".."] {
            assert!(!is_unchanged(home.as_fd(), &placed(name)), "{name:?} was read");
        }
        assert!(is_unchanged(home.as_fd(), &placed("own")));
    }

    #[test]
    fn links_and_files_with_other_names_are_not_compared() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::write(at("own"), "secret").unwrap();
        std::os::unix::fs::symlink(at("own"), at("soft")).unwrap();
        fs::hard_link(at("own"), at("hard")).unwrap();
        let home = open(home.path());
        for name in ["soft", "hard", "own"] {
            assert!(!is_unchanged(home.as_fd(), &placed(name)), "{name:?} was read");
        }
    }
}
