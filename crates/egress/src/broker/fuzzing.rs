//! Runs in: tests and fuzz targets.
//!
//! The properties of the broker's readers.

use cloche_model::HostName;

use super::{
    dns::asked_name_of,
    first_bytes::{FirstBytes, read_first_bytes},
};

/// A name that a query asks for is in the one spelling that rules are matched with.
pub(crate) fn check_asked_name(bytes: &[u8]) {
    if let Some(name) = asked_name_of(bytes) {
        let again: Result<HostName, _> = name.as_str().parse();
        assert_eq!(again.as_ref(), Ok(&name));
    }
}

/// A verdict about a part of the bytes is the verdict about all of them.
pub(crate) fn check_first_bytes(bytes: &[u8]) {
    let whole = read_first_bytes(bytes);
    for len in [bytes.len() / 2, bytes.len().saturating_sub(1)] {
        let part = read_first_bytes(&bytes[..len]);
        assert!(part == FirstBytes::Incomplete || part == whole, "{part:?}, then {whole:?}");
    }
}
