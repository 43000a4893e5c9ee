//! Runs in: broker (no capabilities).
//!
//! What the first bytes of a connection say: TLS with the name in its ClientHello, plain HTTP, or
//! something else. rustls reads the handshake, also over several records.

use cloche_model::HostName;
use rustls::server::Acceptor;

use crate::protocol::MAX_FIRST_BYTES;

/// What a guest speaks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FirstBytes {
    /// More bytes are needed.
    Incomplete,
    /// TLS; the name is absent if the client sent none or one that is no host name.
    Tls(Option<HostName>),
    /// HTTP/1.
    Http,
    /// Neither.
    Other,
}

/// Reads the bytes that a guest has sent so far.
pub(crate) fn read_first_bytes(bytes: &[u8]) -> FirstBytes {
    const HANDSHAKE: u8 = 0x16;
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
                return FirstBytes::Tls(name.and_then(|name| HostName::from_wire(name).ok()));
            }
            Err(_) => return FirstBytes::Other,
        }
    }
    match bytes.len() < MAX_FIRST_BYTES {
        true => FirstBytes::Incomplete,
        false => FirstBytes::Other,
    }
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
