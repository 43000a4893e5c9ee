//! Runs in: broker (no capabilities).
//!
//! What the first bytes of a connection say: TLS with the name in its ClientHello, plain HTTP, or
//! something else. rustls reads the handshake, also over several records.

use cloche_model::HostName;
use rustls::server::Acceptor;

use crate::protocol::MAX_FIRST_BYTES;

/// The type of a TLS record with handshake messages.
const HANDSHAKE: u8 = 0x16;

/// What a guest speaks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FirstBytes {
    /// More bytes are needed.
    Incomplete,
    /// TLS; the name is absent if the client sent none or one that is no host name.
    Tls(Option<HostName>),
    /// TLS with an Encrypted ClientHello: the name that can be read is not the one that is meant.
    HiddenName(Option<HostName>),
    /// HTTP/1.
    Http,
    /// Neither.
    Other,
}

/// Reads the bytes that a guest has sent so far.
pub(crate) fn read_first_bytes(bytes: &[u8]) -> FirstBytes {
    match bytes.first() {
        None => FirstBytes::Incomplete,
        Some(&HANDSHAKE) => read_client_hello(bytes),
        Some(_) => read_request_line(bytes),
    }
}

fn read_client_hello(bytes: &[u8]) -> FirstBytes {
    let mut acceptor = Acceptor::default();
    let mut left = bytes;
    while !left.is_empty() {
        if acceptor.read_tls(&mut left).is_err() {
            return FirstBytes::Other;
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                let name = hello.server_name().map(str::as_bytes);
                let name = name.and_then(|name| HostName::from_wire(name).ok());
                return match hides_name(bytes) {
                    true => FirstBytes::HiddenName(name),
                    false => FirstBytes::Tls(name),
                };
            }
            Err(_) => return FirstBytes::Other,
        }
    }
    match bytes.len() < MAX_FIRST_BYTES {
        true => FirstBytes::Incomplete,
        false => FirstBytes::Other,
    }
}

/// Whether a whole ClientHello has an Encrypted ClientHello in it. rustls does not tell: it ignores
/// the extension. What cannot be read counts as hidden.
fn hides_name(records: &[u8]) -> bool {
    const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
    extension_types(&join_records(records))
        .is_none_or(|types| types.contains(&ENCRYPTED_CLIENT_HELLO))
}

/// The handshake bytes of TLS records: each is a type, a version and a length before its content.
fn join_records(mut records: &[u8]) -> Vec<u8> {
    let mut handshake = Vec::with_capacity(records.len());
    while let [kind, _, _, high, low, rest @ ..] = records {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        if *kind == HANDSHAKE {
            handshake.extend(&rest[..len]);
        }
        records = &rest[len..];
    }
    handshake
}

/// The types of the extensions of a ClientHello (RFC 8446, section 4.1.2).
fn extension_types(handshake: &[u8]) -> Option<Vec<u16>> {
    const TYPE_LENGTH_VERSION_RANDOM: usize = 1 + 3 + 2 + 32;
    let rest = handshake.get(TYPE_LENGTH_VERSION_RANDOM..)?;
    let (session, rest) = rest.split_first()?;
    let rest = rest.get(usize::from(*session)..)?;
    let (ciphers, rest) = rest.split_first_chunk()?;
    let rest = rest.get(usize::from(u16::from_be_bytes(*ciphers))..)?;
    let (compressions, rest) = rest.split_first()?;
    let rest = rest.get(usize::from(*compressions)..)?;
    let Some((len, rest)) = rest.split_first_chunk() else {
        // A client of old has none.
        return Some(Vec::new());
    };
    let mut extensions = rest.get(..usize::from(u16::from_be_bytes(*len)))?;
    let mut types = Vec::new();
    while let [type_high, type_low, len_high, len_low, rest @ ..] = extensions {
        types.push(u16::from_be_bytes([*type_high, *type_low]));
        extensions = rest.get(usize::from(u16::from_be_bytes([*len_high, *len_low]))..)?;
    }
    Some(types)
}

/// A request of HTTP/1 begins with a method, a space, and not with the preface of HTTP/2.
fn read_request_line(bytes: &[u8]) -> FirstBytes {
    const LONGEST_METHOD: usize = 24;
    let method = bytes.iter().take_while(|b| b.is_ascii_uppercase() || **b == b'-').count();
    match bytes.get(method) {
        _ if method > LONGEST_METHOD => FirstBytes::Other,
        None => FirstBytes::Incomplete,
        Some(b' ') if method > 0 && &bytes[..method] != b"PRI" => FirstBytes::Http,
        Some(_) => FirstBytes::Other,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// The ClientHello of a real client.
    fn client_hello(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = name.to_owned().try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_name_of_a_handshake_is_found_only_in_the_whole_of_it() {
        let hello = client_hello("A.example");
        let name = Some("a.example".parse().unwrap());
        assert_eq!(read_first_bytes(&hello), FirstBytes::Tls(name));
        for len in 0..hello.len() {
            assert_eq!(read_first_bytes(&hello[..len]), FirstBytes::Incomplete, "{len}");
        }
        // A handshake to an address has no name.
        assert_eq!(read_first_bytes(&client_hello("1.1.1.1")), FirstBytes::Tls(None));
    }

    #[test]
    fn a_handshake_in_several_records_is_one() {
        let hello = client_hello("a.example");
        let (header, body) = hello.split_at(5);
        let mut split = Vec::new();
        for part in body.chunks(7) {
            split.extend(&header[..3]);
            split.extend((part.len() as u16).to_be_bytes());
            split.extend(part);
        }
        let name = Some("a.example".parse().unwrap());
        assert_eq!(read_first_bytes(&split), FirstBytes::Tls(name));
    }

    /// The same ClientHello with one more extension.
    fn add_extension(hello: &[u8], kind: u16, content: &[u8]) -> Vec<u8> {
        let mut handshake = hello[5..].to_vec();
        let types_before = extension_types(&handshake).unwrap().len();
        let at = extensions_at(&handshake);
        let len = u16::from_be_bytes([handshake[at], handshake[at + 1]]);
        let added = 4 + content.len() as u16;
        handshake[at..at + 2].copy_from_slice(&(len + added).to_be_bytes());
        // In front: a pre-shared key has to stay the last one.
        let extension = [&kind.to_be_bytes()[..], &(added - 4).to_be_bytes(), content].concat();
        handshake.splice(at + 2..at + 2, extension);
        let whole = (handshake.len() - 4) as u32;
        handshake[1..4].copy_from_slice(&whole.to_be_bytes()[1..]);
        assert_eq!(extension_types(&handshake).unwrap().len(), types_before + 1);
        [&hello[..3], &(handshake.len() as u16).to_be_bytes(), &handshake].concat()
    }

    fn extensions_at(handshake: &[u8]) -> usize {
        let session = 38 + 1 + usize::from(handshake[38]);
        let ciphers = u16::from_be_bytes([handshake[session], handshake[session + 1]]);
        let compressions = session + 2 + usize::from(ciphers);
        compressions + 1 + usize::from(handshake[compressions])
    }

    #[test]
    fn an_encrypted_client_hello_is_no_name() {
        let hello = client_hello("a.example");
        let name = Some("a.example".parse().unwrap());
        let other = add_extension(&hello, 0xfafa, b"grease");
        assert_eq!(read_first_bytes(&other), FirstBytes::Tls(name.clone()));
        let outer = [0, 0, 1, 0, 1, 7, 0, 2, 1, 2, 0, 3, 4, 5, 6];
        let encrypted = add_extension(&hello, 0xfe0d, &outer);
        assert_eq!(read_first_bytes(&encrypted), FirstBytes::HiddenName(name.clone()));
        let mut split = Vec::new();
        for part in encrypted[5..].chunks(100) {
            split.extend(&encrypted[..3]);
            split.extend((part.len() as u16).to_be_bytes());
            split.extend(part);
        }
        assert_eq!(read_first_bytes(&split), FirstBytes::HiddenName(name));
        for len in 0..encrypted.len() {
            assert_eq!(read_first_bytes(&encrypted[..len]), FirstBytes::Incomplete, "{len}");
        }
    }

    #[test]
    fn requests_and_other_protocols_are_told_apart() {
        assert_eq!(read_first_bytes(b"GET / HTTP/1.1\r\n"), FirstBytes::Http);
        assert_eq!(read_first_bytes(b"VERSION-CONTROL /"), FirstBytes::Http);
        assert_eq!(read_first_bytes(b"PRO"), FirstBytes::Incomplete);
        for bytes in [
            &b"PRI * HTTP/2.0"[..],
            b"SSH-2.0-x",
            b"\x00\x00\x00\x08",
            b" GET",
            b"get /",
            &[b'A'; 30],
        ] {
            assert_eq!(read_first_bytes(bytes), FirstBytes::Other, "{bytes:?}");
        }
        assert_eq!(read_first_bytes(&[0x16; 40]), FirstBytes::Other);
    }
}
