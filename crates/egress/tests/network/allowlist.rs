//! Runs in: test. The known ways around an allowlist of names, each closed.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpStream, UdpSocket},
    sync::Arc,
    time::Duration,
};

use cloche_model::{DenialReason, NetworkProtocol, NetworkReport};
use hickory_proto::{op::ResponseCode, rr::RecordType};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use crate::{
    internet::{OTHER, TestInternet, WEB, connect, exchange, get, is_possible},
    names::look_up,
};

/// An internet with two names on one address and one on another; `web.example` is allowed.
fn internet_with_web(rules: &[&str]) -> TestInternet {
    let internet = TestInternet::allowing(rules);
    internet.names.set("web.example", &[WEB]);
    internet.names.set("neighbour.example", &[WEB]);
    internet.names.set("other.example", &[OTHER]);
    internet.serve_http("93.184.216.34:80", "web");
    internet.serve_http("93.184.216.35:80", "other");
    internet
}

fn has(
    report: &NetworkReport,
    host: &str,
    protocol: NetworkProtocol,
    reason: DenialReason,
) -> bool {
    report
        .denied
        .iter()
        .any(|denied| denied.host == host && denied.protocol == protocol && denied.reason == reason)
}

#[test]
fn an_allowed_name_is_reached_and_others_are_not_even_resolved() {
    if !is_possible() {
        return;
    }
    let internet = internet_with_web(&["web.example"]);
    internet.in_cell(|| {
        // An address that no name was resolved to, although it is the right one.
        let literal = connect("93.184.216.34:80").map(drop).unwrap_err().kind();
        assert_eq!(literal, ErrorKind::ConnectionRefused);
        assert_eq!(look_up("web.example", RecordType::A).addresses.len(), 1);
        assert_eq!(get("93.184.216.34:80", "web.example").unwrap(), "web");
        assert_eq!(get("93.184.216.34:80", "WEB.example:80").unwrap(), "web");
        for name in ["other.example", "neighbour.example", "secret-data.evil.example"] {
            assert_eq!(look_up(name, RecordType::A).code, ResponseCode::NXDomain, "{name}");
        }
        assert!(connect("93.184.216.35:80").is_err());
        // Another port of the right address.
        assert!(connect("93.184.216.34:22").is_err());
    });
    assert!(internet.names.asked().iter().all(|name| name == "web.example"));
    let report = internet.finish();
    let (tcp, dns) = (NetworkProtocol::Tcp, NetworkProtocol::Dns);
    assert!(has(&report, WEB, tcp, DenialReason::NotAllowed), "{report:?}");
    assert!(has(&report, "other.example", dns, DenialReason::NotAllowed), "{report:?}");
    assert!(report.denied.iter().any(|denied| denied.port == 22), "{report:?}");
}

#[test]
fn every_plain_request_has_to_name_the_allowed_host() {
    if !is_possible() {
        return;
    }
    let internet = internet_with_web(&["web.example"]);
    internet.in_cell(|| {
        look_up("web.example", RecordType::A);
        let ask = |request: &str| {
            exchange("93.184.216.34:80", request.as_bytes()).unwrap_or_else(|e| e.to_string())
        };
        let refused = |request: &str| {
            let answer = ask(request);
            assert!(!answer.contains("200 OK"), "{request:?}: {answer}");
        };
        assert!(get("93.184.216.34:80", "neighbour.example").unwrap().contains("403"));
        refused("GET / HTTP/1.1\r\nHost: web.example\r\nHost: neighbour.example\r\n\r\n");
        refused("GET / HTTP/1.1\r\nHost: neighbour.example\r\nHost: web.example\r\n\r\n");
        refused("GET http://neighbour.example/ HTTP/1.1\r\nHost: web.example\r\n\r\n");
        refused("GET / HTTP/1.0\r\n\r\n");
        refused("CONNECT web.example:80 HTTP/1.1\r\nHost: web.example\r\n\r\n");
        refused("GET / HTTP/1.1\r\nHost: web.example@neighbour.example\r\n\r\n");
        refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        refused("SSH-2.0-client\r\n");

        // The second request of a connection names another host.
        let mut stream = connect("93.184.216.34:80").unwrap();
        let first = b"GET / HTTP/1.1\r\nHost: web.example\r\n\r\n";
        let second = b"GET / HTTP/1.1\r\nHost: neighbour.example\r\n\r\n";
        stream.write_all(&[&first[..], second].concat()).unwrap();
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers);
        let answers = String::from_utf8_lossy(&answers);
        assert!(answers.contains("200 OK") && answers.contains("403 Forbidden"), "{answers}");
    });
    let report = internet.finish();
    let http = NetworkProtocol::Http;
    assert!(has(&report, "neighbour.example", http, DenialReason::NotAllowed), "{report:?}");
}

/// A TLS server for a name, and a client that trusts it.
fn serve_tls(internet: &TestInternet, address: &str, names: &[&str]) -> Arc<ClientConfig> {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let server = Arc::new(server);
    internet.serve(address, move |mut stream| {
        let mut session = ServerConnection::new(Arc::clone(&server)).unwrap();
        let mut tls = rustls::Stream::new(&mut session, &mut stream);
        let mut byte = [0; 1];
        if tls.read_exact(&mut byte).is_ok() {
            let _ = tls.write_all(b"hello over tls");
            session.send_close_notify();
            let _ = session.complete_io(&mut stream);
        }
    });
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(client)
}

fn talk_tls(config: &Arc<ClientConfig>, address: &str, name: &str) -> std::io::Result<String> {
    let name = name.to_owned().try_into().unwrap();
    let mut session = ClientConnection::new(Arc::clone(config), name).unwrap();
    let mut stream: TcpStream = connect(address)?;
    let mut tls = rustls::Stream::new(&mut session, &mut stream);
    tls.write_all(b"x")?;
    let mut text = String::new();
    tls.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn the_name_in_a_tls_handshake_has_to_be_pinned_to_the_address() {
    if !is_possible() {
        return;
    }
    let internet = internet_with_web(&["web.example", "other.example"]);
    let names = ["web.example", "neighbour.example", "other.example"];
    let config = serve_tls(&internet, "93.184.216.34:443", &names);
    internet.in_cell(move || {
        look_up("web.example", RecordType::A);
        look_up("other.example", RecordType::A);
        let talk = |name: &str| talk_tls(&config, "93.184.216.34:443", name);
        assert_eq!(talk("web.example").unwrap(), "hello over tls");
        // Another name behind the same address, an allowed name of another address, no name.
        for name in ["neighbour.example", "other.example", "93.184.216.34"] {
            assert!(talk(name).is_err(), "{name}");
        }
        // Bytes that are neither TLS nor HTTP.
        assert!(exchange("93.184.216.34:443", &[0, 1, 2, 3]).is_err());
    });
    let report = internet.finish();
    let tls = NetworkProtocol::Tls;
    assert!(has(&report, "neighbour.example", tls, DenialReason::NotAllowed), "{report:?}");
    assert!(has(&report, "other.example", tls, DenialReason::NameMismatch), "{report:?}");
    assert!(has(&report, "web.example", tls, DenialReason::NameMismatch), "{report:?}");
    let unknown = DenialReason::UnknownProtocol;
    assert!(has(&report, "web.example", NetworkProtocol::Tcp, unknown), "{report:?}");
}

#[test]
fn a_handshake_in_pieces_is_judged_as_a_whole() {
    if !is_possible() {
        return;
    }
    let internet = internet_with_web(&["web.example"]);
    let config = serve_tls(&internet, "93.184.216.34:443", &["web.example", "neighbour.example"]);
    internet.in_cell(move || {
        look_up("web.example", RecordType::A);
        for (name, allowed) in [("web.example", true), ("neighbour.example", false)] {
            let server_name = name.to_owned().try_into().unwrap();
            let mut session = ClientConnection::new(Arc::clone(&config), server_name).unwrap();
            let mut hello = Vec::new();
            session.write_tls(&mut hello).unwrap();
            let mut stream = connect("93.184.216.34:443").unwrap();
            stream.set_nodelay(true).unwrap();
            for piece in hello.chunks(40) {
                let _ = stream.write_all(piece);
                std::thread::yield_now();
            }
            let answered = matches!(stream.read(&mut [0; 16]), Ok(1..));
            assert_eq!(answered, allowed, "{name}");
        }
    });
    internet.finish();
}

/// The ClientHello of a real client with an Encrypted ClientHello in front of its other extensions.
fn hide_name(hello: &[u8]) -> Vec<u8> {
    const OUTER: [u8; 15] = [0, 0, 1, 0, 1, 7, 0, 2, 1, 2, 0, 3, 4, 5, 6];
    let mut handshake = hello[5..].to_vec();
    let session = 39 + usize::from(handshake[38]);
    let ciphers = u16::from_be_bytes([handshake[session], handshake[session + 1]]);
    let compressions = session + 2 + usize::from(ciphers);
    let at = compressions + 1 + usize::from(handshake[compressions]);
    let len = u16::from_be_bytes([handshake[at], handshake[at + 1]]) + 4 + OUTER.len() as u16;
    handshake[at..at + 2].copy_from_slice(&len.to_be_bytes());
    handshake.splice(at + 2..at + 2, [&[0xfe, 0x0d, 0, OUTER.len() as u8][..], &OUTER].concat());
    let whole = (handshake.len() - 4) as u32;
    handshake[1..4].copy_from_slice(&whole.to_be_bytes()[1..]);
    [&hello[..3], &(handshake.len() as u16).to_be_bytes(), &handshake].concat()
}

#[test]
fn a_handshake_that_hides_its_name_is_refused() {
    if !is_possible() {
        return;
    }
    let internet = internet_with_web(&["web.example"]);
    let config = serve_tls(&internet, "93.184.216.34:443", &["web.example", "neighbour.example"]);
    internet.in_cell(move || {
        look_up("web.example", RecordType::A);
        for (hides, allowed) in [(false, true), (true, false)] {
            let name = "web.example".try_into().unwrap();
            let mut session = ClientConnection::new(Arc::clone(&config), name).unwrap();
            let mut hello = Vec::new();
            session.write_tls(&mut hello).unwrap();
            let hello = if hides { hide_name(&hello) } else { hello };
            let mut stream = connect("93.184.216.34:443").unwrap();
            stream.write_all(&hello).unwrap();
            let answered = matches!(stream.read(&mut [0; 16]), Ok(1..));
            assert_eq!(answered, allowed, "{hides}");
        }
    });
    let report = internet.finish();
    let hidden = DenialReason::NameHidden;
    assert!(has(&report, "web.example", NetworkProtocol::Tls, hidden), "{report:?}");
}

#[test]
fn a_probe_that_says_nothing_reaches_the_server_and_is_no_denial() {
    if !is_possible() {
        return;
    }
    let internet = internet_with_web(&["web.example:5432", "web.example:443"]);
    let (ended, ends) = std::sync::mpsc::channel();
    for address in ["93.184.216.34:5432", "93.184.216.34:443"] {
        let ended = ended.clone();
        internet.serve(address, move |mut stream| {
            let mut bytes = Vec::new();
            ended.send(stream.read_to_end(&mut bytes).map(|_| bytes.len()).ok()).unwrap();
        });
    }
    internet.in_cell(|| {
        look_up("web.example", RecordType::A);
        drop(connect("93.184.216.34:5432").unwrap());
    });
    // Both well before a guest that must show a name runs out of time.
    let soon = Duration::from_secs(4);
    assert_eq!(ends.recv_timeout(soon), Ok(Some(0)));
    internet.in_cell(|| drop(connect("93.184.216.34:443").unwrap()));
    assert_eq!(ends.recv_timeout(soon), Ok(Some(0)));
    assert_eq!(internet.finish().denied, []);
}

#[test]
fn other_ports_carry_protocols_without_names_but_no_tls_of_other_names() {
    if !is_possible() {
        return;
    }
    let internet = internet_with_web(&["web.example:22", "web.example:8443", "web.example:5432"]);
    internet.serve("93.184.216.34:22", |mut stream| {
        let _ = stream.write_all(b"SSH-2.0-server\r\n");
        let mut line = [0; 16];
        if let Ok(len) = stream.read(&mut line) {
            let _ = stream.write_all(&line[..len]);
        }
    });
    internet.serve("93.184.216.34:5432", |mut stream| {
        let mut bytes = [0; 8];
        if stream.read_exact(&mut bytes).is_ok() {
            let _ = stream.write_all(b"N");
        }
    });
    let names = ["web.example", "neighbour.example"];
    let config = serve_tls(&internet, "93.184.216.34:8443", &names);
    internet.in_cell(move || {
        look_up("web.example", RecordType::A);
        let mut stream = connect("93.184.216.34:22").unwrap();
        let mut banner = [0; 16];
        stream.read_exact(&mut banner).unwrap();
        assert_eq!(&banner, b"SSH-2.0-server\r\n");
        stream.write_all(b"SSH-2.0-client\r\n").unwrap();
        stream.read_exact(&mut banner).unwrap();
        assert_eq!(&banner, b"SSH-2.0-client\r\n");
        let answer = exchange("93.184.216.34:5432", &[0, 0, 0, 8, 4, 210, 22, 47]).unwrap();
        assert_eq!(answer, "N");
        let talk = |name: &str| talk_tls(&config, "93.184.216.34:8443", name);
        assert_eq!(talk("web.example").unwrap(), "hello over tls");
        assert!(talk("neighbour.example").is_err());
    });
    internet.finish();
}

#[test]
fn datagrams_records_and_resolvers_open_no_other_way() {
    if !is_possible() {
        return;
    }
    let internet = internet_with_web(&["web.example", "*.wild.example"]);
    internet.names.set("a.wild.example", &[OTHER]);
    internet.names.set("wild.example", &[OTHER]);
    internet.in_cell(|| {
        look_up("web.example", RecordType::A);
        let send_datagram = |target: &str| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            socket.connect(target).unwrap();
            socket.send(&[0; 32]).unwrap();
            socket.recv(&mut [0; 32]).unwrap_err().kind()
        };
        // QUIC to an allowed host, and DNS of others: refused at once, so that clients fall back.
        for target in ["93.184.216.34:443", "93.184.216.53:53", "8.8.8.8:53", "93.184.216.34:853"] {
            assert_eq!(send_datagram(target), ErrorKind::ConnectionRefused, "{target}");
        }
        for target in ["93.184.216.53:53", "93.184.216.34:853"] {
            assert!(connect(target).is_err(), "{target}");
        }
        // Records that hide names or carry data.
        for kind in [RecordType::HTTPS, RecordType::SVCB, RecordType::TXT, RecordType::ANY] {
            let answer = look_up("web.example", kind);
            assert_eq!(answer.code, ResponseCode::NoError, "{kind}");
            assert!(answer.addresses.is_empty());
        }
        assert_eq!(look_up("1.0.0.10.in-addr.arpa", RecordType::PTR).code, ResponseCode::NXDomain);
        // A wildcard means names below it, and no long ones.
        assert_eq!(look_up("a.wild.example", RecordType::A).addresses.len(), 1);
        let not_below = look_up("wild.example", RecordType::A).code;
        assert_eq!(not_below, ResponseCode::NXDomain);
        let long = format!("{0}.{0}.{0}.wild.example", "d".repeat(60));
        assert_eq!(look_up(&long, RecordType::A).code, ResponseCode::NXDomain);
    });
    let asked = internet.names.asked();
    assert!(
        asked.iter().all(|name| name == "web.example" || name == "a.wild.example"),
        "{asked:?}"
    );
    internet.finish();
}

#[test]
fn addresses_that_a_rule_names_are_reached_without_a_name() {
    if !is_possible() {
        return;
    }
    let internet = internet_with_web(&["93.184.216.34:80", "10.0.0.0/8"]);
    internet.in_cell(|| {
        assert_eq!(get("93.184.216.34:80", "anything.example").unwrap(), "web");
        assert!(connect("93.184.216.35:80").is_err());
        // The floor has the last word.
        assert!(connect("10.0.0.5:80").is_err());
    });
    let report = internet.finish();
    let blocked = DenialReason::AddressBlocked;
    assert!(has(&report, "10.0.0.5", NetworkProtocol::Tcp, blocked), "{report:?}");
}
