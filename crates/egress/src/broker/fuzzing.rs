//! Runs in: tests and fuzz targets.
//!
//! The properties of the broker's readers.

mod plain_requests;
mod worker_messages;

use cloche_model::HostName;
use hickory_proto::{
    op::{Message, OpCode},
    rr::RecordType,
};

use super::{
    dns::asked_name_of,
    first_bytes::{FirstBytes, read_first_bytes},
    pins::MOST_ADDRESSES,
    resolver::read_answer,
};

pub(crate) use plain_requests::check_plain_requests;
pub(crate) use worker_messages::check_worker_messages;

/// The name that an allowlist of these checks allows.
const ALLOWED: &str = "allowed.example";

/// A name that a query asks for is in the one spelling that rules are matched with.
pub(crate) fn check_asked_name(bytes: &[u8]) {
    if let Some(name) = asked_name_of(bytes) {
        let again: Result<HostName, _> = name.as_str().parse();
        assert_eq!(again.as_ref(), Ok(&name));
    }
}

/// The addresses in an answer of a name server are few, all different, and of the family that was
/// asked for. What is forwarded can be written again.
pub(crate) fn check_dns_answer(bytes: &[u8]) {
    let Ok(name) = ALLOWED.parse() else { return };
    for kind in [RecordType::A, RecordType::AAAA, RecordType::TXT] {
        let Some((answer, resolved)) = read_answer(&name, kind, bytes) else { continue };
        let mut addresses = resolved.addresses;
        assert!(addresses.len() <= MOST_ADDRESSES);
        assert!(addresses.iter().all(|address| match kind {
            RecordType::A => address.is_ipv4(),
            RecordType::AAAA => address.is_ipv6(),
            _ => false,
        }));
        let count = addresses.len();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), count);
        let mut forwarded = Message::response(0, OpCode::Query);
        forwarded.add_answers(answer.answers);
        // It may be too long, which is an error and no panic.
        drop(forwarded.to_vec());
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
