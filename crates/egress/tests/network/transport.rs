//! Runs in: test. What works through a cell's network, and fails as it would without it.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use cloche_model::{ByteSize, DenialReason, NetworkLimits, NetworkPolicy};
use cloche_test_support::eventually_blocking;
use hickory_proto::rr::RecordType;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
};

use crate::{
    internet::{
        TestInternet, WEB, WEB_V6, connect, echo_datagrams, exchange, get, is_possible, settings,
    },
    names::{look_up, look_up_by_tcp},
};

/// Sends what it gets back after the client has ended.
fn echo_after_end(mut stream: TcpStream) {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let _ = stream.write_all(&bytes);
}

#[test]
fn bytes_cross_a_half_closed_connection_both_ways() {
    if !is_possible() {
        return;
    }
    let internet = TestInternet::unrestricted();
    internet.serve("93.184.216.34:7000", echo_after_end);
    let sent: Vec<u8> = (0..5_000_000_u32).map(|n| (n % 251) as u8).collect();
    let expected = sent.clone();
    let received = internet.in_cell(move || {
        let mut stream = connect("93.184.216.34:7000").unwrap();
        let mut writer = stream.try_clone().unwrap();
        let writing = std::thread::spawn(move || {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        writing.join().unwrap();
        received
    });
    assert!(received == expected, "{} of {} bytes", received.len(), expected.len());
    let report = internet.finish();
    assert_eq!((report.bytes_in, report.bytes_out), (5_000_000, 5_000_000));
    assert_eq!((report.connections, report.denied.len(), report.lost), (1, 0, None));
}

#[test]
fn a_closed_port_refuses_and_a_reset_is_a_reset() {
    if !is_possible() {
        return;
    }
    let internet = TestInternet::unrestricted();
    internet.serve("93.184.216.34:7001", |mut stream| {
        let _ = stream.read(&mut [0; 1]);
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    let (refused, reset) = internet.in_cell(|| {
        let refused = connect("93.184.216.34:9").map(drop).map_err(|error| error.kind());
        let reset = exchange("93.184.216.34:7001", b"hello").map_err(|error| error.kind());
        (refused, reset)
    });
    assert_eq!(refused, Err(ErrorKind::ConnectionRefused));
    assert_eq!(reset, Err(ErrorKind::ConnectionReset));
    assert_eq!(internet.finish().connections, 1);
}

#[test]
fn names_are_resolved_over_udp_and_tcp_and_datagrams_are_answered() {
    if !is_possible() {
        return;
    }
    let internet = TestInternet::unrestricted();
    internet.names.set("web.example", &[WEB, WEB_V6]);
    let many: Vec<String> = (1..=60).map(|n| format!("93.184.217.{n}")).collect();
    internet.names.set("many.example", &many.iter().map(String::as_str).collect::<Vec<_>>());
    echo_datagrams(&internet, "93.184.216.34:7002");
    internet.in_cell(|| {
        assert_eq!(
            look_up("WEB.example", RecordType::A).addresses,
            [WEB.parse::<std::net::IpAddr>().unwrap()]
        );
        let v6 = look_up("web.example", RecordType::AAAA).addresses;
        assert_eq!(v6, [WEB_V6.parse::<std::net::IpAddr>().unwrap()]);
        assert!(look_up("many.example", RecordType::A).truncated);
        assert_eq!(look_up_by_tcp("many.example", RecordType::A).addresses.len(), 60);

        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.connect("93.184.216.34:7002").unwrap();
        let mut buffer = [0; 65_536];
        // The last one is the largest that there is.
        for len in [0, 1400, 1473, 9000, 65_507] {
            let sent = vec![(len % 251) as u8; len];
            socket.send(&sent).unwrap();
            assert_eq!(socket.recv(&mut buffer).unwrap(), len);
            assert!(buffer[..len] == sent, "{len}");
        }

        // A closed port is unreachable, and the error belongs to the socket.
        socket.connect("93.184.216.34:7003").unwrap();
        socket.send(b"x").unwrap();
        assert_eq!(socket.recv(&mut buffer).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    });
    assert_eq!(internet.finish().denied, []);
}

#[test]
fn ipv6_works_where_the_host_has_it() {
    if !is_possible() {
        return;
    }
    let internet = TestInternet::unrestricted();
    internet.serve_http("[2606:4700::34]:80", "six");
    echo_datagrams(&internet, "[2606:4700::34]:7004");
    internet.in_cell(|| {
        assert_eq!(get("[2606:4700::34]:80", "web.example").unwrap(), "six");
        let socket = UdpSocket::bind("[::]:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.connect("[2606:4700::34]:7004").unwrap();
        let mut buffer = [0; 65_536];
        for len in [5, 1453, 60_000] {
            socket.send(&vec![7; len]).unwrap();
            assert_eq!(socket.recv(&mut buffer).unwrap(), len);
        }
        let refused = connect("[2606:4700::34]:9").unwrap_err().kind();
        assert_eq!(refused, ErrorKind::ConnectionRefused);
    });
    internet.finish();
}

#[test]
fn connections_and_bytes_of_a_run_are_limited() {
    if !is_possible() {
        return;
    }
    let limits = NetworkLimits {
        connections: 3,
        bytes_per_run: Some(ByteSize::mib(1)),
        ..NetworkLimits::default()
    };
    let internet = TestInternet::start(NetworkPolicy::Unrestricted, limits, settings());
    internet.serve("93.184.216.34:7005", |mut stream| {
        let chunk = [0; 65_536];
        while stream.write_all(&chunk).is_ok() {}
    });
    internet.serve("93.184.216.34:7006", echo_after_end);
    internet.in_cell(|| {
        let held: Vec<TcpStream> = (0..3).map(|_| connect("93.184.216.34:7006").unwrap()).collect();
        let fourth = connect("93.184.216.34:7006").unwrap_err().kind();
        assert_eq!(fourth, ErrorKind::ConnectionRefused);
        drop(held);
        let mut stream =
            eventually_blocking("a place for a connection", || connect("93.184.216.34:7005"));
        let mut received = Vec::new();
        let ended = stream.read_to_end(&mut received).map_err(|error| error.kind());
        assert_eq!(ended, Err(ErrorKind::ConnectionReset));
        // All that was counted, and no more.
        assert_eq!(received.len(), 1024 * 1024);
        let after = connect("93.184.216.34:7006").unwrap_err().kind();
        assert_eq!(after, ErrorKind::ConnectionRefused);
    });
    let report = internet.finish();
    assert_eq!(report.bytes_in, 1024 * 1024, "{report:?}");
    assert!(report.denied.iter().all(|denied| denied.reason == DenialReason::LimitReached));
    assert!(!report.denied.is_empty());
}

/// Begins a connection and gives it up before anything has answered.
fn give_up(address: &str) {
    let address: SocketAddr = address.parse().unwrap();
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    assert_eq!(rustix::net::connect(&socket, &address), Err(Errno::INPROGRESS));
}

#[test]
fn connections_that_are_given_up_leave_their_places() {
    if !is_possible() {
        return;
    }
    let limits = NetworkLimits { connections: 3, ..NetworkLimits::default() };
    let internet = TestInternet::start(NetworkPolicy::Unrestricted, limits, settings());
    internet.serve("93.184.216.34:7008", echo_after_end);
    internet.in_cell(|| {
        for _ in 0..4 {
            (0..3).for_each(|_| give_up("93.184.216.34:7008"));
            let mut stream =
                eventually_blocking("a place for a connection", || connect("93.184.216.34:7008"));
            stream.write_all(b"here").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "here");
        }
    });
    internet.finish();
}

#[test]
fn a_slow_server_that_has_ended_gets_every_byte() {
    if !is_possible() {
        return;
    }
    const SENT: usize = 12_000_000;
    let internet = TestInternet::unrestricted();
    let (count, counted) = std::sync::mpsc::channel();
    internet.serve("93.184.216.34:7009", move |mut stream| {
        stream.write_all(b"enough").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let (mut received, mut buffer) = (0, vec![0; 32 * 1024]);
        while let Ok(len @ 1..) = stream.read(&mut buffer) {
            received += len;
            std::thread::sleep(Duration::from_micros(200));
        }
        count.send(received).unwrap();
    });
    internet.in_cell(|| {
        let mut stream = connect("93.184.216.34:7009").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "enough");
        stream.write_all(&vec![7; SENT]).unwrap();
    });
    assert_eq!(counted.recv_timeout(Duration::from_secs(60)), Ok(SENT));
    internet.finish();
}

#[test]
fn without_its_session_or_the_broker_a_cell_has_no_network() {
    if !is_possible() {
        return;
    }
    for end_broker in [false, true] {
        let mut internet = TestInternet::unrestricted();
        internet.serve_http("93.184.216.34:80", "web");
        let reached = internet.in_cell(|| get("93.184.216.34:80", "web.example"));
        assert_eq!(reached.unwrap(), "web");
        if end_broker {
            let report = internet.end_broker();
            assert!(report.lost.is_some(), "{report:?}");
        } else {
            internet.drop_session();
        }
        let reached = internet.in_cell(|| connect("93.184.216.34:80").map(drop));
        assert!(reached.is_err());
    }
}

#[test]
fn two_hundred_stalled_connections_do_not_stop_the_others() {
    if !is_possible() {
        return;
    }
    let limits = NetworkLimits { new_burst: 1000, ..NetworkLimits::default() };
    let internet = TestInternet::start(NetworkPolicy::Unrestricted, limits, settings());
    internet.serve("93.184.216.34:7007", |mut stream| {
        let chunk = [0; 65_536];
        while stream.write_all(&chunk).is_ok() {}
    });
    internet.serve_http("93.184.216.34:80", "web");
    internet.in_cell(|| {
        // None of them reads what its server sends.
        let stalled: Vec<TcpStream> =
            (0..200).map(|_| connect("93.184.216.34:7007").unwrap()).collect();
        assert_eq!(get("93.184.216.34:80", "web.example").unwrap(), "web");
        assert_eq!(stalled.len(), 200);
    });
    assert_eq!(internet.finish().connections, 201);
}
