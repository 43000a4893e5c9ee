//! Runs in: test. Requests of a cell through the interceptor to a real server, over real TLS and
//! HTTP of both versions.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

mod clients;
mod server;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response, StatusCode, Uri, Version,
    body::Incoming,
    client::conn::{http1, http2},
    header::{AUTHORIZATION, HOST as HOST_HEADER},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use server::{HOST, SECRET, TestAuthority, TestInternet, TestServer, credential};

const BOTH: &[&str] = &["h2", "http/1.1"];

fn request(version: Version, authority: &str, target: &str) -> hyper::http::request::Builder {
    match version {
        Version::HTTP_2 => {
            let uri: Uri = format!("https://{authority}{target}").parse().unwrap();
            Request::builder().version(version).uri(uri)
        }
        _ => Request::builder().uri(target).header(HOST_HEADER, authority),
    }
}

/// Sends requests over one connection; the interceptor and the server speak the same version.
async fn send_all(
    internet: &TestInternet,
    version: Version,
    requests: Vec<Request<Full<Bytes>>>,
) -> Vec<Response<Incoming>> {
    let alpn = if version == Version::HTTP_2 { "h2" } else { "http/1.1" };
    let (stream, _serving) = internet.connect_tls(HOST, &[alpn]).await.unwrap();
    let mut replies = Vec::new();
    if version == Version::HTTP_2 {
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        for request in requests {
            sender.ready().await.unwrap();
            replies.push(sender.send_request(request).await.unwrap());
        }
    } else {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        for request in requests {
            sender.ready().await.unwrap();
            let reply = sender.send_request(request).await.unwrap();
            replies.push(reply);
        }
    }
    replies
}

async fn send(
    internet: &TestInternet,
    version: Version,
    request: Request<Full<Bytes>>,
) -> Response<Incoming> {
    send_all(internet, version, vec![request]).await.remove(0)
}

async fn text(reply: Response<Incoming>) -> String {
    String::from_utf8(reply.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

fn empty() -> Full<Bytes> {
    Full::new(Bytes::new())
}

const VERSIONS: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];

#[tokio::test]
async fn the_server_gets_the_credential_and_the_cell_gets_stars() {
    let credentials = [credential("api", "bearer", SECRET)];
    for version in VERSIONS {
        let internet = TestInternet::start(&credentials, BOTH).await;
        let asked = request(version, HOST, "/echo?a=1")
            .method("POST")
            .header(AUTHORIZATION, "Bearer cloche-credential-api")
            .header(AUTHORIZATION, "Bearer mine")
            .header("accept-encoding", "gzip, br")
            .header("range", "bytes=0-4")
            .body(Full::new(Bytes::from("content")))
            .unwrap();
        let reply = send(&internet, version, asked).await;
        assert_eq!(reply.status(), 200);
        let echoed = text(reply).await;
        let seen = internet.server.seen().remove(0);
        let values: Vec<_> = seen.headers.get_all(AUTHORIZATION).iter().collect();
        assert_eq!(values, [&format!("Bearer {SECRET}")], "{version:?}");
        assert_eq!(seen.headers["accept-encoding"], "identity");
        assert!(!seen.headers.contains_key("range"));
        assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/echo?a=1"));
        assert_eq!(seen.body, b"content");
        assert!(!echoed.contains(SECRET) && echoed.contains("Bearer ****"), "{echoed}");
    }
}

#[tokio::test]
async fn replies_have_the_secret_in_no_header_trailer_or_split_chunk() {
    let credentials = [credential("api", "header X-Api-Key", SECRET)];
    for version in VERSIONS {
        let internet = TestInternet::start(&credentials, BOTH).await;
        let get = |target: &str| request(version, HOST, target).body(empty()).unwrap();
        let reply = send(&internet, version, get("/headers")).await;
        let stars = "*".repeat(SECRET.len());
        assert_eq!(reply.headers()["x-echo-x-api-key"], stars);
        let reply = send(&internet, version, get("/redirect")).await;
        assert_eq!(reply.status(), StatusCode::FOUND);
        let to = reply.headers()["location"].to_str().unwrap();
        assert_eq!(to, format!("https://evil.example/?stolen={stars}"));
        assert_eq!(internet.server.seen().len(), 2, "a redirect was followed");
        let reply = send(&internet, version, get("/split")).await;
        assert_eq!(text(reply).await, format!("before {stars} after"));
        let reply = send(&internet, version, get("/alt")).await;
        assert!(!reply.headers().contains_key("alt-svc"));
        if version == Version::HTTP_2 {
            let reply = send(&internet, version, get("/trailers")).await;
            let collected = reply.into_body().collect().await.unwrap();
            let trailers = collected.trailers().unwrap().clone();
            assert_eq!(trailers["grpc-message"], stars);
            assert_eq!(trailers["grpc-status"], "0");
        }
    }
}

#[tokio::test]
async fn a_compressed_reply_is_dropped() {
    let credentials = [credential("api", "bearer", SECRET)];
    for version in VERSIONS {
        let internet = TestInternet::start(&credentials, BOTH).await;
        let get = request(version, HOST, "/gzip").body(empty()).unwrap();
        let reply = send(&internet, version, get).await;
        assert_eq!(reply.status(), StatusCode::BAD_GATEWAY);
        assert!(text(reply).await.contains("compressed"));
    }
}

#[tokio::test]
async fn a_reply_with_a_coding_of_the_transfer_is_dropped() {
    let internet = TestInternet::start(&[credential("api", "bearer", SECRET)], BOTH).await;
    let get = request(Version::HTTP_11, HOST, "/coding").body(empty()).unwrap();
    let reply = send(&internet, Version::HTTP_11, get).await;
    assert_eq!(reply.status(), StatusCode::BAD_GATEWAY);
    assert!(text(reply).await.contains("compressed"));
}

/// As old servers do. A reply that has a length, and is shorter, was cut off.
#[tokio::test]
async fn a_reply_that_ends_with_its_connection_arrives_whole_and_others_are_cut_off() {
    let authority = TestAuthority::new();
    for (headers, is_whole) in
        [("", true), ("Content-Length: 100\r\n", false), ("Transfer-Encoding: chunked\r\n", false)]
    {
        let body = match headers.starts_with("Transfer") {
            true => format!("{:x}\r\nyou sent {SECRET}\r\n", 9 + SECRET.len()),
            false => format!("you sent {SECRET}"),
        };
        let version = if is_whole { "1.0" } else { "1.1" };
        let reply = format!("HTTP/{version} 200 OK\r\n{headers}\r\n{body}");
        let server = TestServer::start_ragged(&authority, reply).await;
        let credentials = [credential("api", "bearer", SECRET)];
        let internet = TestInternet::with_server(server, &authority, &credentials);
        let get = request(Version::HTTP_11, HOST, "/old").body(empty()).unwrap();
        let got = send(&internet, Version::HTTP_11, get).await.into_body().collect().await;
        assert_eq!(got.is_ok(), is_whole, "{headers}");
        if let Ok(got) = got {
            let stars = "*".repeat(SECRET.len());
            assert_eq!(got.to_bytes(), format!("you sent {stars}"));
        }
    }
}

#[tokio::test]
async fn a_header_with_the_secret_in_its_name_is_removed() {
    let credentials = [credential("api", "header X-Api-Key", "Sk-Live-0123456789")];
    for version in VERSIONS {
        let internet = TestInternet::start(&credentials, BOTH).await;
        let get = request(version, HOST, "/names").body(empty()).unwrap();
        let reply = send(&internet, version, get).await;
        assert_eq!(reply.headers()["x-other"], "1");
        let names: Vec<_> = reply.headers().keys().map(ToString::to_string).collect();
        assert!(!names.iter().any(|name| name.contains("sk-live")), "{names:?}");
    }
}

#[tokio::test]
async fn an_event_arrives_while_the_stream_is_open() {
    let credentials = [credential("api", "bearer", SECRET)];
    for version in VERSIONS {
        let internet = TestInternet::start(&credentials, BOTH).await;
        let get = request(version, HOST, "/sse").body(empty()).unwrap();
        let mut body = send(&internet, version, get).await.into_body();
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "data: one\n\n");
    }
}

/// A cell that asks for a lot and reads nothing.
#[tokio::test]
async fn replies_that_a_cell_does_not_read_are_kept_back_at_the_server() {
    const REQUESTS: usize = 64;
    let internet = TestInternet::start(&[credential("api", "bearer", SECRET)], BOTH).await;
    let (stream, _serving) = internet.connect_tls(HOST, &["h2"]).await.unwrap();
    let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1 << 30)
        .initial_connection_window_size(1 << 30)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    let ask = || request(Version::HTTP_2, HOST, "/endless").body(empty()).unwrap();
    let replies: Vec<_> = (0..REQUESTS).map(|_| sender.send_request(ask())).collect();
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => panic!("the connection ended"),
        replies = futures::future::join_all(replies) => assert_eq!(replies.len(), REQUESTS),
    }
    // From here on the cell reads nothing.
    internet.server.endless().released.add_permits(REQUESTS);
    let large = request(Version::HTTP_2, HOST, "/large").body(empty()).unwrap();
    let body = send(&internet, Version::HTTP_2, large).await.into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes().len(), 32 << 20);
    let sent = internet.server.endless().sent.load(std::sync::atomic::Ordering::Relaxed);
    assert!((1 << 20..12 << 20).contains(&sent), "{sent} bytes were taken from the server");
}

#[tokio::test]
async fn another_host_on_the_connection_of_a_bound_one_is_misdirected() {
    let credentials = [credential("api", "bearer", SECRET)];
    for version in VERSIONS {
        let internet = TestInternet::start(&credentials, BOTH).await;
        for other in ["evil.example", "api.example.com:8443", "API.example.com.evil.example"] {
            let get = request(version, other, "/echo").body(empty()).unwrap();
            let reply = send(&internet, version, get).await;
            assert_eq!(reply.status(), StatusCode::MISDIRECTED_REQUEST, "{version:?} {other}");
        }
        assert!(internet.server.seen().is_empty());
        // Every request of a connection is checked, not only the first.
        if version == Version::HTTP_2 {
            let good = request(version, HOST, "/echo").body(empty()).unwrap();
            let other = request(version, "evil.example", "/echo").body(empty()).unwrap();
            let replies = send_all(&internet, version, vec![good, other]).await;
            assert_eq!(replies[0].status(), 200);
            assert_eq!(replies[1].status(), StatusCode::MISDIRECTED_REQUEST);
            assert_eq!(internet.server.seen().len(), 1);
        }
    }
}

#[tokio::test]
async fn nothing_is_sent_to_a_server_with_the_certificate_of_another_host_or_authority() {
    let credentials = [credential("api", "bearer", SECRET)];
    let (authority, stranger) = (TestAuthority::new(), TestAuthority::new());
    let other_name = TestServer::start(&authority, "other.example.com", BOTH).await;
    let other_authority = TestServer::start(&stranger, HOST, BOTH).await;
    for server in [other_name, other_authority] {
        let internet = TestInternet::with_server(server, &authority, &credentials);
        for version in VERSIONS {
            let get = request(version, HOST, "/echo").body(empty()).unwrap();
            let reply = send(&internet, version, get).await;
            assert_eq!(reply.status(), StatusCode::BAD_GATEWAY);
            let said = text(reply).await;
            assert!(said.contains("valid for its name") && !said.contains(SECRET), "{said}");
        }
        assert!(internet.server.seen().is_empty());
    }
}

/// Writes bytes to an HTTP/1.1 connection, and reads until it is closed.
async fn write_raw(internet: &TestInternet, bytes: &str) -> String {
    let (mut stream, _) = internet.connect_tls(HOST, &["http/1.1"]).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut reply = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut chunk).await {
        reply.extend_from_slice(&chunk[..length]);
        if reply.windows(4).any(|part| part == b"\r\n\r\n") {
            break;
        }
    }
    String::from_utf8(reply).unwrap()
}

#[tokio::test]
async fn a_request_with_two_readings_is_refused_before_anything_is_sent() {
    let internet = TestInternet::start(&[credential("api", "bearer", SECRET)], BOTH).await;
    for (head, status) in [
        ("TRACE / HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "405"),
        ("CONNECT evil.example:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "405"),
        ("GET https://evil.example/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        ("GET https://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        ("OPTIONS * HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.example\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: api.example.com:444\r\n\r\n", "421"),
        ("GET / HTTP/1.1\r\nHost: x@api.example.com\r\n\r\n", "421"),
        ("GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: authorization\r\n\r\n", "400"),
        (
            "GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            "501",
        ),
        (
            "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy",
            "400",
        ),
        (
            "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "400",
        ),
    ] {
        let reply = write_raw(&internet, head).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status}")), "{head:?}: {reply}");
        assert!(!reply.contains(SECRET));
    }
    assert!(internet.server.seen().is_empty(), "{:?}", internet.server.seen());
}

#[tokio::test]
async fn a_length_beside_chunks_never_reaches_the_server_as_two_requests() {
    let internet = TestInternet::start(&[credential("api", "bearer", SECRET)], BOTH).await;
    let smuggled = "POST /one HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 5\r\n\
        Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /two HTTP/1.1\r\nHost: api.example.com\r\n\r\n";
    write_raw(&internet, smuggled).await;
    let targets: Vec<_> = internet.server.seen().into_iter().map(|seen| seen.target).collect();
    assert!(!targets.contains(&"/two".to_owned()), "{targets:?}");
}

#[tokio::test]
async fn a_credential_is_added_for_its_methods_and_paths_only() {
    let mut api = credential("api", "bearer", SECRET);
    api.rule.methods = vec!["GET".to_owned()];
    api.rule.paths = vec!["/v1".to_owned()];
    let internet = TestInternet::start(&[api], BOTH).await;
    for version in VERSIONS {
        for (method, target, has_it) in [
            ("GET", "/v1/x", true),
            ("GET", "/v1", true),
            ("GET", "/%76%31/x?y=/../", true),
            ("POST", "/v1/x", false),
            ("GET", "/v10", false),
            ("GET", "/other", false),
        ] {
            let asked = request(version, HOST, target).method(method).body(empty()).unwrap();
            assert_eq!(send(&internet, version, asked).await.status(), 200);
            let seen = internet.server.seen().pop().unwrap();
            assert_eq!(seen.headers.contains_key(AUTHORIZATION), has_it, "{method} {target}");
        }
        let before = internet.server.seen().len();
        for target in ["/v1/../admin", "/v1/%2e%2e/admin", "/v1//x", "/v1%2f..%2fadmin"] {
            let asked = request(version, HOST, target).body(empty()).unwrap();
            let status = send(&internet, version, asked).await.status();
            assert_eq!(status, StatusCode::BAD_REQUEST, "{target}");
        }
        assert_eq!(internet.server.seen().len(), before);
    }
}

#[tokio::test]
async fn a_placeholder_chooses_between_credentials_for_one_place() {
    let (one, two) = ("first-value-of-a-key", "second-value-of-a-key");
    let credentials = [
        credential("one", "bearer", one),
        credential("two", "bearer", two),
        credential("extra", "query key", SECRET),
    ];
    let internet = TestInternet::start(&credentials, BOTH).await;
    let ask = async |value: Option<&str>| {
        let mut asked = request(Version::HTTP_11, HOST, "/echo?a=1&key=mine&%6bey=2&b");
        if let Some(value) = value {
            asked = asked.header(AUTHORIZATION, value);
        }
        send(&internet, Version::HTTP_11, asked.body(empty()).unwrap()).await.status()
    };
    assert_eq!(ask(Some("Bearer cloche-credential-two")).await, 200);
    let seen = internet.server.seen().pop().unwrap();
    assert_eq!(seen.headers[AUTHORIZATION], format!("Bearer {two}"));
    assert_eq!(seen.target, "/echo?a=1&b&key=sk%2Dlive%2F0123%2B456789%3Dabcdef");
    for unclear in [None, Some("Bearer mine"), Some("Bearer cloche-credential-twofold")] {
        assert_eq!(ask(unclear).await, StatusCode::FORBIDDEN, "{unclear:?}");
    }
    assert_eq!(internet.server.seen().len(), 1);
}

#[tokio::test]
async fn basic_credentials_are_encoded_and_the_password_alone_is_redacted() {
    let value = "user:correct-horse-battery";
    let internet = TestInternet::start(&[credential("api", "basic", value)], BOTH).await;
    let asked = request(Version::HTTP_11, HOST, "/echo?correct-horse-battery");
    let reply = send(&internet, Version::HTTP_11, asked.body(empty()).unwrap()).await;
    let echoed = text(reply).await;
    let seen = internet.server.seen().remove(0);
    assert_eq!(seen.headers[AUTHORIZATION], "Basic dXNlcjpjb3JyZWN0LWhvcnNlLWJhdHRlcnk=");
    assert!(!echoed.contains("correct-horse") && !echoed.contains("cnJlY3QtaG9yc2U"), "{echoed}");
}

#[tokio::test]
async fn the_cell_speaks_what_the_server_chooses() {
    let credentials = [credential("api", "bearer", SECRET)];
    for (server, cell, chosen) in [
        (BOTH, BOTH, Some("h2")),
        (&["http/1.1"][..], BOTH, Some("http/1.1")),
        (BOTH, &["http/1.1"][..], Some("http/1.1")),
        (&[][..], BOTH, Some("http/1.1")),
        (BOTH, &[][..], None),
    ] {
        let internet = TestInternet::start(&credentials, server).await;
        let (stream, _) = internet.connect_tls(HOST, cell).await.unwrap();
        let agreed = stream.get_ref().1.alpn_protocol();
        assert_eq!(agreed, chosen.map(str::as_bytes), "{server:?} {cell:?}");
    }
}

#[tokio::test]
async fn a_connection_that_names_another_host_in_its_handshake_is_not_intercepted() {
    let internet = TestInternet::start(&[credential("api", "bearer", SECRET)], BOTH).await;
    // A hostile client takes any certificate, so only the comparison of names stops it.
    let (connected, serving) = internet.connect_trusting("other.example.com").await;
    assert!(connected.is_err(), "{connected:?}");
    let failure = serving.await.unwrap().failure;
    assert_eq!(failure.as_deref(), Some("the client names another host in its handshake"));
    let (connected, _) = internet.connect_trusting("API.example.com").await;
    assert!(connected.is_ok(), "{connected:?}");
    let (mut cell, serving) = internet.connect().await;
    cell.write_all(b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n").await.unwrap();
    drop(cell);
    assert!(serving.await.unwrap().failure.is_some());
    assert!(internet.server.seen().is_empty());
    assert!(internet.interceptor.is_bound(HOST, 443));
    for (host, port) in [(HOST, 80), (HOST, 8443), ("example.com", 443), ("x.api.example.com", 443)]
    {
        assert!(!internet.interceptor.is_bound(host, port), "{host}:{port}");
    }
}

#[tokio::test]
async fn what_is_shown_of_an_interceptor_has_no_secret() {
    let internet = TestInternet::start(&[credential("api", "bearer", SECRET)], BOTH).await;
    let shown = format!("{:?}", internet.interceptor);
    assert!(shown.contains(HOST) && !shown.contains(SECRET), "{shown}");
}
