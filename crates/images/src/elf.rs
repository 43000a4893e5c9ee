//! Runs in: server (no capabilities).
//!
//! What the beginning of a program says: whether it is for this processor, and which loader it
//! needs.

/// How many bytes of a program are looked at.
pub(crate) const PROGRAM_BYTES: u64 = 64 << 10;

/// The kind of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    /// A program for this processor, and the path of its loader if it has one.
    Native(Option<Vec<u8>>),
    /// A program for another processor.
    Foreign,
    /// A script, and its first line.
    Script(String),
    /// Something else.
    Unknown,
}

/// Recognises a program by its first bytes.
pub(crate) fn recognize_program(bytes: &[u8]) -> ProgramKind {
    if let Some(line) = bytes.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let line: String = String::from_utf8_lossy(line).chars().take(128).collect();
        return ProgramKind::Script(line.trim().to_owned());
    }
    if !bytes.starts_with(b"\x7fELF") {
        return ProgramKind::Unknown;
    }
    const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    // 64 bits, little-endian.
    if bytes.get(4..6) != Some(&[2, 1]) || read_u16(bytes, 18) != Some(MACHINE) {
        return ProgramKind::Foreign;
    }
    match find_loader(bytes) {
        Some(loader) => ProgramKind::Native(loader),
        None => ProgramKind::Unknown,
    }
}

/// The loader that the program headers name. The outer `None` is a malformed program.
fn find_loader(bytes: &[u8]) -> Option<Option<Vec<u8>>> {
    const INTERP: u32 = 3;
    let start = usize::try_from(read_u64(bytes, 32)?).ok()?;
    let (size, count) = (usize::from(read_u16(bytes, 54)?), usize::from(read_u16(bytes, 56)?));
    if size < 56 {
        return None;
    }
    for number in 0..count.min(64) {
        let at = start.checked_add(number.checked_mul(size)?)?;
        if read_u32(bytes, at)? != INTERP {
            continue;
        }
        let offset = usize::try_from(read_u64(bytes, at + 8)?).ok()?;
        let length = usize::try_from(read_u64(bytes, at + 32)?).ok()?;
        let path = bytes.get(offset..offset.checked_add(length.min(4096))?)?;
        return Some(Some(path.split(|&byte| byte == 0).next()?.to_vec()));
    }
    Some(None)
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_le_bytes)
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_this_host_names_its_loader() {
        let mut bytes = std::fs::read("/bin/sh").unwrap();
        bytes.truncate(PROGRAM_BYTES as usize);
        let ProgramKind::Native(Some(loader)) = recognize_program(&bytes) else {
            panic!("no loader");
        };
        assert!(std::path::Path::new(std::str::from_utf8(&loader).unwrap()).exists());
        for length in 0..bytes.len().min(1024) {
            recognize_program(&bytes[..length]);
        }
        bytes[18] = 40;
        assert_eq!(recognize_program(&bytes), ProgramKind::Foreign);
    }

    #[test]
    fn a_script_is_not_a_program() {
        let script = ProgramKind::Script("/usr/bin/env bash".to_owned());
        assert_eq!(recognize_program(b"#!/usr/bin/env bash\nexec x"), script);
        assert_eq!(recognize_program(b"MZ"), ProgramKind::Unknown);
        assert_eq!(recognize_program(b"\x7fELF\x02\x01"), ProgramKind::Foreign);
    }
}
