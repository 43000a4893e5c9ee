//! Runs in: build. A zip archive of stored files, as Python's `zipimport` reads it.
//!
//! Nothing is compressed: the archive is part of the binary, and inflating it would cost each start
//! of an interpreter time and an import of `zlib`.

/// Archives files in the order given.
pub(crate) fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let at = out.len();
        let about = about(name, content);
        out.extend_from_slice(b"PK\x03\x04");
        out.extend_from_slice(&about);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(content);
        // The version that made it, what the local header has, no comment, no attributes.
        directory.extend_from_slice(b"PK\x01\x02\x14\0");
        directory.extend_from_slice(&about);
        directory.extend_from_slice(&[0; 10]);
        directory.extend_from_slice(&number(at));
        directory.extend_from_slice(name.as_bytes());
    }
    let (at, count) = (out.len(), half(files.len()));
    out.extend_from_slice(&directory);
    out.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    out.extend_from_slice(&[count, count].concat());
    out.extend_from_slice(&[number(directory.len()), number(at)].concat());
    out.extend_from_slice(&[0; 2]);
    out
}

/// What the local header and the directory both say: version, no flags, stored, 1980-01-01,
/// checksum, sizes, length of the name, nothing extra.
fn about(name: &str, content: &[u8]) -> Vec<u8> {
    let size = number(content.len());
    let mut out = b"\x14\0\0\0\0\0\0\0\x21\0".to_vec();
    out.extend_from_slice(&[checksum(content).to_le_bytes(), size, size].concat());
    out.extend_from_slice(&[half(name.len()), [0; 2]].concat());
    out
}

fn number(value: usize) -> [u8; 4] {
    u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes()
}

fn half(value: usize) -> [u8; 2] {
    u16::try_from(value).unwrap_or(u16::MAX).to_le_bytes()
}

/// CRC-32, as zip has it.
fn checksum(content: &[u8]) -> u32 {
    let step = |sum: u32, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
    let add = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), step);
    !content.iter().fold(u32::MAX, add)
}
