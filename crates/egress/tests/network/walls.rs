//! Runs in: test. What no policy reaches. Every test ends by counting the canaries.

use std::{
    io::ErrorKind,
    net::{TcpListener, UdpSocket},
    time::Duration,
};

use cloche_model::{DenialReason, NetworkProtocol};
use hickory_proto::rr::RecordType;

use crate::{
    internet::{TestInternet, WEB, connect, is_possible},
    names::look_up,
};

#[test]
fn private_metadata_and_denied_addresses_are_refused_at_once() {
    if !is_possible() {
        return;
    }
    let internet = TestInternet::unrestricted();
    let targets = [
        "169.254.169.254:80",
        "10.0.0.5:80",
        "192.168.1.1:80",
        "100.64.0.9:80",
        "93.184.216.99:80",
        "[fd00:ec2::254]:80",
        "[64:ff9b::a00:5]:80",
        "[2002:a00:5::1]:80",
    ];
    internet.in_cell(move || {
        for target in targets {
            let refused = connect(target).map(drop).unwrap_err().kind();
            assert_eq!(refused, ErrorKind::ConnectionRefused, "{target}");
        }
        // IPv4 in IPv6 is IPv4 for the kernel of the cell, so it is the same destination.
        assert!(connect("[::ffff:169.254.169.254]:80").is_err());
        assert!(connect("[::ffff:10.0.0.5]:80").is_err());
        assert!(connect("0.0.0.0:80").is_err());
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.connect("10.0.0.5:9999").unwrap();
        socket.send(b"x").unwrap();
        let error = socket.recv(&mut [0; 1]).unwrap_err().kind();
        assert_eq!(error, ErrorKind::ConnectionRefused);
    });
    let report = internet.finish();
    assert!(report.denied.iter().all(|denied| denied.reason == DenialReason::AddressBlocked));
    let hosts: Vec<&str> = report.denied.iter().map(|denied| denied.host.as_str()).collect();
    assert!(hosts.contains(&"169.254.169.254") && hosts.contains(&"fd00:ec2::254"), "{hosts:?}");
    assert_eq!((report.connections, report.bytes_out), (0, 0));
}

#[test]
fn the_hosts_own_addresses_are_refused_whatever_they_are() {
    if !is_possible() {
        return;
    }
    let internet = TestInternet::unrestricted();
    let listener = internet.host.run(|| {
        let listener = TcpListener::bind("0.0.0.0:8080").unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    });
    internet.in_cell(|| {
        for target in ["93.184.216.1:8080", "[2606:4700::1]:8080", "192.0.0.1:8080"] {
            let refused = connect(target).map(drop).unwrap_err().kind();
            assert_eq!(refused, ErrorKind::ConnectionRefused, "{target}");
        }
    });
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    internet.finish();
}

#[test]
fn mail_is_closed_in_every_policy() {
    if !is_possible() {
        return;
    }
    for internet in [TestInternet::unrestricted(), TestInternet::allowing(&["93.184.216.0/24"])] {
        internet.serve("93.184.216.34:25", |_| panic!("a mail server was reached"));
        let refused = internet.in_cell(|| connect("93.184.216.34:25").map(drop));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let report = internet.finish();
        let [denied] = report.denied.as_slice() else { panic!("{report:?}") };
        assert_eq!((denied.port, denied.reason), (25, DenialReason::PortBlocked));
        assert_eq!(denied.protocol, NetworkProtocol::Tcp);
    }
}

#[test]
fn names_that_lead_to_private_addresses_have_none() {
    if !is_possible() {
        return;
    }
    let internet = TestInternet::unrestricted();
    internet.names.set("inside.example", &["10.0.0.5", "169.254.169.254", "127.0.0.1"]);
    internet.names.set("alias.example", &["inside.example"]);
    internet.names.set("mixed.example", &["10.0.0.5", WEB]);
    internet.names.set("six.example", &["::ffff:10.0.0.5", "64:ff9b::a00:5", "fd00:ec2::254"]);
    internet.names.set("moves.example", &[WEB]);
    let names = internet.names.clone();
    internet.in_cell(move || {
        assert!(look_up("inside.example", RecordType::A).addresses.is_empty());
        assert!(look_up("alias.example", RecordType::A).addresses.is_empty());
        assert!(look_up("six.example", RecordType::AAAA).addresses.is_empty());
        let web = [WEB.parse::<std::net::IpAddr>().unwrap()];
        assert_eq!(look_up("mixed.example", RecordType::A).addresses, web);
        // A name that changes its answer between two questions.
        assert_eq!(look_up("moves.example", RecordType::A).addresses, web);
        names.set("moves.example", &["10.0.0.5"]);
        assert!(look_up("moves.example", RecordType::A).addresses.is_empty());
        assert!(connect("10.0.0.5:80").is_err());
    });
    let report = internet.finish();
    let denied: Vec<&str> = report.denied.iter().map(|denied| denied.host.as_str()).collect();
    assert!(denied.contains(&"inside.example") && denied.contains(&"moves.example"), "{denied:?}");
}

#[test]
fn a_port_scan_is_cut() {
    if !is_possible() {
        return;
    }
    let internet = TestInternet::unrestricted();
    internet.serve_http("93.184.216.34:80", "web");
    internet.in_cell(|| {
        for port in 3000..3110 {
            assert!(connect(&format!("93.184.216.34:{port}")).is_err());
        }
        assert!(connect("93.184.216.34:80").is_err());
    });
    let report = internet.finish();
    assert!(report.denied.iter().any(|denied| denied.reason == DenialReason::ScanDetected));
}

#[test]
fn a_blocked_session_reaches_nothing() {
    if !is_possible() {
        return;
    }
    let internet = TestInternet::start(
        cloche_model::NetworkPolicy::Blocked,
        cloche_model::NetworkLimits::default(),
        crate::internet::settings(),
    );
    internet.serve("93.184.216.34:80", |_| panic!("a server was reached"));
    internet.names.set("web.example", &[WEB]);
    internet.in_cell(|| {
        assert!(connect("93.184.216.34:80").is_err());
        assert!(look_up("web.example", RecordType::A).addresses.is_empty());
    });
    assert_eq!(internet.names.asked(), Vec::<String>::new());
    internet.finish();
}
