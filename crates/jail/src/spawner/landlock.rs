//! Runs in: spawner (root).
//!
//! The Landlock wall: read and execute everywhere, write only where a guest may write.
//!
//! It knows the access bits of each Landlock version. It does not know the rest of the cell.

use std::{ffi::CString, path::PathBuf};

use super::plan::{ReadAccess, path_to_cstring};
use crate::protocol::{
    encode::{self, OwnedStep},
    step::Step,
};

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_BLOCK: u64 = 1 << 11;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;

/// Every file access that this version can handle.
const fn handled_access_fs(version: u32) -> u64 {
    let bits = match version {
        0 | 1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    (1 << bits) - 1
}

/// The wall of a cell without a root of its own: it reads only what is listed. Paths may be
/// relative to the working directory of the process. None if the kernel has no Landlock.
pub(crate) fn contained_steps(
    readable: &[(PathBuf, ReadAccess)],
    devices: &[PathBuf],
    writable: &[PathBuf],
    version: u32,
) -> Vec<(String, OwnedStep)> {
    if version == 0 {
        return Vec::new();
    }
    let mut rules: Vec<(CString, u64)> = Vec::new();
    for (path, access) in readable {
        let access = match access {
            ReadAccess::File => EXECUTE | READ_FILE,
            ReadAccess::Directory => EXECUTE | READ_FILE | READ_DIR,
            ReadAccess::Names => READ_DIR,
        };
        rules.push((path_to_cstring(path), access));
    }
    let device = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV;
    rules.extend(devices.iter().map(|path| (path_to_cstring(path), device)));
    let write = handled_access_fs(version) & !(MAKE_CHAR | MAKE_BLOCK);
    rules.extend(writable.iter().map(|path| (path_to_cstring(path), write)));
    vec![landlock_step(&rules, version)]
}

/// The wall as steps, with device nodes or directories of them to write to; none if the kernel has
/// no Landlock.
pub(crate) fn wall_steps(
    devices: &[PathBuf],
    writable: &[PathBuf],
    version: u32,
) -> Vec<(String, OwnedStep)> {
    if version == 0 {
        return Vec::new();
    }
    let read = EXECUTE | READ_FILE | READ_DIR;
    let write = handled_access_fs(version) & !(MAKE_CHAR | MAKE_BLOCK);
    let mut rules: Vec<(CString, u64)> = vec![(c"/".into(), read)];
    // Terminals and the usual device nodes can be written to, never made.
    let device = WRITE_FILE | TRUNCATE | IOCTL_DEV;
    rules.extend(devices.iter().map(|path| (path_to_cstring(path), device)));
    rules.extend(writable.iter().map(|path| (path_to_cstring(path), write)));
    vec![landlock_step(&rules, version)]
}

fn landlock_step(rules: &[(CString, u64)], version: u32) -> (String, OwnedStep) {
    // From version 6 on: no abstract sockets and no signals to processes outside of the cell.
    let scoped = if version >= 6 { 0b11 } else { 0 };
    let size = match version {
        0..=3 => 8,
        4 | 5 => 16,
        _ => 24,
    };
    let rules = encode::encode_rules(rules);
    ("landlock".into(), Step::Landlock { files: handled_access_fs(version), scoped, size, rules })
}
