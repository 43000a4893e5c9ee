//! The MCP endpoint of the real binary: the public Python client over every transport, and the
//! protocol's own conformance suite.

use std::{net::SocketAddr, path::PathBuf};

use http_body_util::BodyExt;
use hyper::{Request, body::Incoming, client, server, service::service_fn};
use hyper_util::rt::TokioIo;
use reqwest::Method;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use crate::{
    host::Host,
    python_client::{tool, top},
    support::{binary, skip},
};

/// A server whose agents may run code.
async fn for_agents() -> Option<Host> {
    let host = Host::start().await?;
    let settings = json!({"agent_sandbox": true, "execute_code": "allow"});
    host.admin_json(Method::PATCH, "teams/default", settings).await;
    Some(host)
}

#[tokio::test]
async fn the_public_client_works_over_every_transport() {
    let Some(python) = tool("python") else { return };
    let Some(host) = for_agents().await else { return };
    let output = tokio::process::Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/mcp", "--basetemp"])
        .arg(host.directory().join("pytest"))
        .current_dir(top())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("CLOCHE_URL", &host.url)
        .env("CLOCHE_API_KEY", &host.key)
        .env("CLOCHE_BIN", binary())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", host.said("log"));
    println!("{said}");
}

/// The suite, if it is installed.
fn suite() -> Option<(PathBuf, PathBuf)> {
    let bin = top().join(".conformance/node_modules/.bin");
    if bin.join("conformance").exists() {
        return Some((bin.join("node"), bin.join("conformance")));
    }
    skip("there is no .conformance: run scripts/setup-tests");
    None
}

#[tokio::test]
async fn the_conformance_suite_finds_no_new_failure() {
    let Some((node, conformance)) = suite() else { return };
    let Some(host) = for_agents().await else { return };
    let url = with_key(&host).await;
    // The suite reads the first resource. An execution that wrote a file creates one.
    let wrote = host.run(json!({"code": "open('a.txt', 'w').write('a')"})).await;
    assert_eq!(wrote.1["success"], true, "{wrote:?}");
    let output = tokio::process::Command::new(node)
        .arg(conformance)
        .args(["server", "--suite", "all", "--url", &format!("{url}/mcp"), "--expected-failures"])
        .arg(top().join("tests/conformance/expected-failures.yaml"))
        .current_dir(host.directory())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("tools-list"), "{said}");
}

/// The suite cannot send a key. This proxy adds one to its requests and changes nothing else.
async fn with_key(host: &Host) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://localhost:{}", listener.local_addr().unwrap().port());
    let server: SocketAddr = host.url.strip_prefix("http://").unwrap().parse().unwrap();
    let key = format!("Bearer {}", host.key);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let key = key.clone();
            let pass_on = service_fn(move |mut request: Request<Incoming>| {
                request.headers_mut().insert("authorization", key.parse().unwrap());
                async move {
                    let stream = TcpStream::connect(server).await.unwrap();
                    let (mut sender, connection) =
                        client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
                    tokio::spawn(connection);
                    let answer = sender.send_request(request).await?;
                    Ok::<_, hyper::Error>(answer.map(BodyExt::boxed))
                }
            });
            let connection = server::conn::http1::Builder::new();
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), pass_on));
        }
    });
    url
}
