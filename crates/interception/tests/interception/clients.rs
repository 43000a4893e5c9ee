//! Real clients in the place of a cell: curl, Python and Node.js, which trust the authority by the
//! variables that a cell has.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use std::{process::Stdio, sync::Arc};

use cloche_interception::Interceptor;
use tokio::{
    net::{TcpListener, TcpStream},
    process::Command,
};

use crate::server::{HOST, SECRET, TestAuthority, TestServer, credential};

/// Resolves every name to this host, then asks.
const PYTHON: &str = "
import json, os, socket, sys, urllib.request
plain = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: plain('127.0.0.1', *rest, **more)
url = sys.argv[1]
token = {'Authorization': 'Bearer ' + os.environ['CLOCHE_CREDENTIAL_API']}
print(urllib.request.urlopen(urllib.request.Request(url, headers=token)).read().decode())
try:
    import requests
except ImportError:
    sys.exit()
print(requests.get(url, headers=token).text)
";
const NODE: &str = "
const dns = require('dns');
dns.lookup = (host, options, done) => options.all
  ? done(null, [{address: '127.0.0.1', family: 4}]) : done(null, '127.0.0.1', 4);
const headers = {Authorization: 'Bearer ' + process.env.CLOCHE_CREDENTIAL_API};
fetch(process.argv[1], {headers}).then((reply) => reply.text()).then(console.log);
";

/// Accepts the connections of clients, as the broker does.
async fn intercept(listener: TcpListener, interceptor: Arc<Interceptor>, server: Arc<TestServer>) {
    let port = listener.local_addr().unwrap().port();
    loop {
        let (cell, _) = listener.accept().await.unwrap();
        let (interceptor, server) = (Arc::clone(&interceptor), Arc::clone(&server));
        tokio::spawn(async move {
            let server = TcpStream::connect(server.address()).await.unwrap();
            interceptor.serve(cell, server, HOST, port).await
        });
    }
}

#[tokio::test]
async fn curl_python_and_node_get_their_credential_added_without_having_it() {
    let authority = TestAuthority::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = Arc::new(TestServer::start(&authority, HOST, &["h2", "http/1.1"]).await);
    let mut api = credential("api", "bearer", SECRET);
    api.rule.hosts = vec![format!("{HOST}:{port}").parse().unwrap()];
    let interceptor = Arc::new(Interceptor::new(&[api], authority.roots()).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let bundle = directory.path().join("ca.pem");
    std::fs::write(&bundle, interceptor.authority_pem()).unwrap();
    tokio::spawn(intercept(listener, interceptor, Arc::clone(&server)));

    let url = format!("https://{HOST}:{port}/echo");
    let resolve = format!("{HOST}:{port}:127.0.0.1");
    let curl = |version: &'static str| {
        vec!["curl", "-sS", version, "--resolve", &resolve, "-HAuthorization: Bearer none", &url]
    };
    for (command, requests) in [
        (curl("--http1.1"), 1),
        (curl("--http2"), 1),
        (vec!["python3", "-c", PYTHON, &url], 1),
        (vec!["node", "-e", NODE, &url], 1),
    ] {
        let before = server.seen().len();
        let mut client = Command::new(command[0]);
        client.args(&command[1..]).stdin(Stdio::null());
        client.env("CLOCHE_CREDENTIAL_API", "cloche-credential-api");
        for name in ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"]
        {
            client.env(name, &bundle);
        }
        let output = match client.output().await {
            Ok(output) => output,
            Err(error) => {
                assert!(std::env::var_os("REQUIRE_KERNEL").is_none(), "{}: {error}", command[0]);
                continue;
            }
        };
        let said = format!(
            "{} {}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(output.status.success(), "{}: {said}", command[0]);
        let seen = server.seen();
        assert!(seen.len() >= before + requests, "{}: {said}", command[0]);
        for request in &seen[before..] {
            assert_eq!(request.headers["authorization"], format!("Bearer {SECRET}"));
        }
        assert!(said.contains("Bearer ****") && !said.contains(SECRET), "{said}");
    }
}
