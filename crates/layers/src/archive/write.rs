//! Writes entries of an archive. It uses only `std` and header blocks, because the packer calls it
//! in a forked child.

use std::io::{self, Write};

use tar::{EntryType, Header};

use super::{
    BLOCK, LINK_NAME, NAME, OPAQUE, OWNER, REDIRECT, WHITEOUT, WHITEOUT_PATH, XATTR, escape_path,
    join_path, needs_escape, pax, split_path,
};
use crate::entry::{EntryKind, Extent, LayerEntry, Mtime};

/// The largest number that fits into the octal digits of a header.
const OCTAL_MOST: u64 = 0o777_7777_7777;

/// Writes everything before an entry's data: records, header and the map of a sparse file.
/// `EntryKind::data_bytes` bytes of data must follow, then `write_padding`.
pub(crate) fn write_header(out: &mut impl Write, entry: &LayerEntry) -> io::Result<()> {
    let mut head = EntryHeader::new();
    head.set_time(entry.mtime);
    head.header.set_mode(entry.mode & 0o7777);
    head.set_kind(entry);
    for (name, value) in &entry.xattrs {
        pax::push_record(&mut head.records, &[XATTR, &encode_key(name)].concat(), value);
    }
    let map = match &entry.kind {
        EntryKind::File { size, extents: Some(extents), .. } => head.set_sparse(*size, extents),
        EntryKind::File { size, .. } => {
            head.set_size(*size);
            Vec::new()
        }
        _ => {
            head.set_size(0);
            Vec::new()
        }
    };
    head.write(out)?;
    out.write_all(&map)?;
    if let EntryKind::Directory { opaque: true, .. } = entry.kind {
        write_opaque(out, &entry.path)?;
    }
    Ok(())
}

/// Pads `data` bytes to a whole block.
pub(crate) fn write_padding(out: &mut impl Write, data: u64) -> io::Result<()> {
    let over = (data % BLOCK as u64) as usize;
    if over == 0 { Ok(()) } else { out.write_all(&[0; BLOCK][over..]) }
}

/// Ends the archive.
pub(crate) fn write_end(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK])?;
    out.flush()
}

/// Writes the file that marks its directory as opaque.
pub(crate) fn write_opaque(out: &mut impl Write, directory: &[u8]) -> io::Result<()> {
    let mut head = EntryHeader::new();
    head.header.set_mode(0o600);
    head.header.set_mtime(0);
    head.header.set_entry_type(EntryType::Regular);
    head.set_name(&join_path(&escape_path(directory), OPAQUE));
    head.keep_true_name(NAME, directory);
    head.set_size(0);
    head.write(out)
}

/// A header and the records before it.
struct EntryHeader {
    records: Vec<u8>,
    header: Header,
    name: Vec<u8>,
}

impl EntryHeader {
    fn new() -> Self {
        Self { records: Vec::new(), header: Header::new_ustar(), name: Vec::new() }
    }

    fn set_kind(&mut self, entry: &LayerEntry) {
        let path = &entry.path;
        let kind = match &entry.kind {
            EntryKind::Directory { redirect, .. } => {
                if let Some(redirect) = redirect {
                    pax::push_record(&mut self.records, REDIRECT, &[b"/", &redirect[..]].concat());
                }
                EntryType::Directory
            }
            EntryKind::File { .. } => EntryType::Regular,
            EntryKind::HardLink { target } => {
                self.set_link(&escape_path(target));
                self.keep_true_name(LINK_NAME, target);
                EntryType::Link
            }
            EntryKind::Symlink { target } => {
                self.set_link(target);
                EntryType::Symlink
            }
            EntryKind::Fifo => EntryType::Fifo,
            EntryKind::Whiteout => EntryType::Regular,
        };
        self.header.set_entry_type(kind);
        match (&entry.kind, &path[..]) {
            (EntryKind::Directory { .. }, b"") => self.set_name(b"./"),
            (EntryKind::Directory { .. }, _) => {
                self.set_name(&[&escape_path(path)[..], b"/"].concat())
            }
            (EntryKind::Whiteout, _) => {
                let (directory, name) = split_path(path);
                let name = [WHITEOUT, &escape_path(name)].concat();
                self.set_name(&join_path(&escape_path(directory), &name));
                return self.keep_true_name(WHITEOUT_PATH, path);
            }
            _ => self.set_name(&escape_path(path)),
        }
        self.keep_true_name(NAME, path);
    }

    fn keep_true_name(&mut self, key: &[u8], path: &[u8]) {
        if needs_escape(path) {
            pax::push_record(&mut self.records, key, path);
        }
    }

    fn set_name(&mut self, name: &[u8]) {
        let field = self.header.as_old_mut();
        if !fill_field(&mut field.name, name) {
            pax::push_record(&mut self.records, b"path", name);
        }
        self.name = name.to_vec();
    }

    fn set_link(&mut self, target: &[u8]) {
        let field = self.header.as_old_mut();
        if !fill_field(&mut field.linkname, target) {
            pax::push_record(&mut self.records, b"linkpath", target);
        }
    }

    fn set_size(&mut self, size: u64) {
        self.header.set_size(if size > OCTAL_MOST { 0 } else { size });
        if size > OCTAL_MOST {
            pax::push_record(&mut self.records, b"size", size.to_string().as_bytes());
        }
    }

    fn set_time(&mut self, time: Mtime) {
        let whole = u64::try_from(time.seconds).unwrap_or(0);
        self.header.set_mtime(whole.min(OCTAL_MOST));
        if time.nanos != 0 || i64::try_from(whole.min(OCTAL_MOST)) != Ok(time.seconds) {
            pax::push_record(&mut self.records, b"mtime", pax::format_time(time).as_bytes());
        }
    }

    /// Adds the records of a sparse file in GNU tar's format 1.0. Returns the map.
    fn set_sparse(&mut self, size: u64, extents: &[Extent]) -> Vec<u8> {
        let end = extents.last().map_or(0, |last| last.offset + last.length);
        // GNU tar needs a final empty extent to set the size.
        let marker = (end != size).then_some(Extent { offset: size, length: 0 });
        let all = extents.iter().chain(&marker);
        let mut map = format!("{}\n", all.clone().count()).into_bytes();
        for extent in all {
            map.extend_from_slice(format!("{}\n{}\n", extent.offset, extent.length).as_bytes());
        }
        map.resize(map.len().next_multiple_of(BLOCK), 0);

        pax::push_record(&mut self.records, b"GNU.sparse.major", b"1");
        pax::push_record(&mut self.records, b"GNU.sparse.minor", b"0");
        pax::push_record(&mut self.records, b"GNU.sparse.name", &self.name);
        pax::push_record(&mut self.records, b"GNU.sparse.realsize", size.to_string().as_bytes());
        let data: u64 = extents.iter().map(|extent| extent.length).sum();
        self.set_size(map.len() as u64 + data);
        map
    }

    fn write(mut self, out: &mut impl Write) -> io::Result<()> {
        if !self.records.is_empty() {
            let mut header = Header::new_ustar();
            fill_field(&mut header.as_old_mut().name, b"PaxHeader");
            header.set_entry_type(EntryType::XHeader);
            header.set_mode(0o600);
            header.set_mtime(0);
            header.set_size(self.records.len() as u64);
            write_header_block(out, &mut header)?;
            out.write_all(&self.records)?;
            write_padding(out, self.records.len() as u64)?;
        }
        write_header_block(out, &mut self.header)
    }
}

fn write_header_block(out: &mut impl Write, header: &mut Header) -> io::Result<()> {
    header.set_uid(OWNER);
    header.set_gid(OWNER);
    header.set_cksum();
    out.write_all(header.as_bytes())
}

/// Copies a name into a field. Truncates it and returns false if it is too long.
fn fill_field(field: &mut [u8; 100], name: &[u8]) -> bool {
    let length = name.len().min(field.len());
    field[..length].copy_from_slice(&name[..length]);
    length == name.len()
}

/// Encodes an attribute's name as a key. Like GNU tar, escapes `=` and `%`.
fn encode_key(name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(name.len());
    for &byte in name {
        match byte {
            b'=' => key.extend_from_slice(b"%3D"),
            b'%' => key.extend_from_slice(b"%25"),
            other => key.push(other),
        }
    }
    key
}
