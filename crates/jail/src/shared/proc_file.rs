//! Runs in: pid 1 of a cell, guest.
//!
//! Reading small files of `/proc` without allocation. Core only.

use core::ffi::CStr;

use super::fmt_buf::FmtBuf;
use crate::sys::{self, RawFd};

/// Parses a decimal number.
pub(crate) fn parse_decimal(digits: &[u8]) -> Option<u32> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Reads the start of a file, as much as fits into the buffer; the path ends with a NUL.
pub(crate) fn read_file<'a>(path: &FmtBuf, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    read_and_close(open_file(path)?, buffer)
}

/// Opens a file; the path ends with a NUL.
pub(crate) fn open_file(path: &FmtBuf) -> Option<RawFd> {
    sys::open(CStr::from_bytes_with_nul(path.as_bytes()).ok()?, 0, 0).ok()
}

/// Reads the start of an open file, as much as fits into the buffer, and closes it.
pub(crate) fn read_and_close(file: RawFd, buffer: &mut [u8]) -> Option<&[u8]> {
    let read = sys::read(file, buffer);
    sys::close(file);
    buffer.get(..read.ok()?)
}
