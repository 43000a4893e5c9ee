//! Runs in: tests and fuzz targets.
//!
//! Plain HTTP under an allowlist, as the server at the other end reads it. The reader here is
//! another one than the proxy's, and stricter: what two readers could understand differently is a
//! failure.

use cloche_model::HostName;
use futures::future::join3;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::ALLOWED;
use crate::broker::http_proxy::serve_requests;

/// How many bytes fit between two ends before one waits for the other.
const PIPE: usize = 64 * 1024;
const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// Whatever a guest sends on a connection, every request that the server gets is for the allowed
/// host, and ends in one place only.
pub(crate) fn check_plain_requests(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let (Ok(runtime), Ok(name)) = (runtime, ALLOWED.parse::<HostName>()) else { return };
    runtime.block_on(async {
        let (guest, guest_end) = duplex(PIPE);
        let (server_end, server) = duplex(PIPE);
        let names = [name];
        let proxied = serve_requests(guest_end, server_end, &names, |_| {});
        join3(proxied, send_all(guest, bytes), answer_requests(server)).await;
    });
}

async fn send_all(mut guest: DuplexStream, bytes: &[u8]) {
    // The proxy may close the connection at any time.
    let _ = guest.write_all(bytes).await;
    let _ = guest.shutdown().await;
    let _ = guest.read_to_end(&mut Vec::new()).await;
}

/// Answers each request when the whole of it is there.
async fn answer_requests(mut server: DuplexStream) {
    let (mut seen, mut answered) = (Vec::new(), 0);
    while matches!(server.read_buf(&mut seen).await, Ok(1..)) {
        let complete = count_requests(&seen);
        for _ in answered..complete {
            if server.write_all(REPLY).await.is_err() {
                return;
            }
        }
        answered = complete;
    }
}

/// Checks the requests in the bytes, and counts the complete ones.
fn count_requests(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Some((head, rest)) = split_at_text(bytes, b"\r\n\r\n") {
        let body = check_head(head);
        let Some(rest) = skip_body(rest, body) else { break };
        (bytes, count) = (rest, count + 1);
    }
    count
}

/// How a body ends.
enum BodyEnd {
    Length(usize),
    LastChunk,
}

fn check_head(head: &[u8]) -> BodyEnd {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.split("\r\n");
    let first: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [_, target, "HTTP/1.1"] = first[..] else { panic!("{first:?}") };
    assert!(target.starts_with('/') || target == "*", "{target}");
    let (mut hosts, mut lengths, mut codings) = (Vec::new(), Vec::new(), Vec::new());
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { panic!("{line:?}") };
        assert!(!line.contains(['\r', '\n']) && !name.ends_with(' '), "{line:?}");
        let found = match name.to_ascii_lowercase().as_str() {
            "host" => &mut hosts,
            "content-length" => &mut lengths,
            "transfer-encoding" => &mut codings,
            _ => continue,
        };
        found.push(value.trim().to_owned());
    }
    let [host] = &hosts[..] else { panic!("{hosts:?}") };
    let port = host.strip_prefix(ALLOWED).unwrap_or_else(|| panic!("{host}"));
    assert!(port.is_empty() || port[1..].parse::<u16>().is_ok(), "{host}");
    match (&lengths[..], &codings[..]) {
        ([], []) => BodyEnd::Length(0),
        ([length], []) => match length.parse() {
            Ok(length) => BodyEnd::Length(length),
            // More than this machine can count is more than there is.
            Err(_) => BodyEnd::Length(usize::MAX),
        },
        ([], [coding]) if coding == "chunked" => BodyEnd::LastChunk,
        _ => panic!("{lengths:?} {codings:?}"),
    }
}

/// What follows a body; `None` if there is more of it to come.
fn skip_body(mut bytes: &[u8], end: BodyEnd) -> Option<&[u8]> {
    if let BodyEnd::Length(length) = end {
        return bytes.get(length..);
    }
    loop {
        let (size, rest) = split_at_text(bytes, b"\r\n")?;
        let size =
            std::str::from_utf8(size).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let size = size.unwrap_or_else(|| panic!("a chunk has no size"));
        if size == 0 {
            bytes = rest;
            break;
        }
        let after = rest.get(size..).filter(|after| after.len() >= 2)?;
        assert!(after.starts_with(b"\r\n"), "a chunk has another size");
        bytes = &after[2..];
    }
    loop {
        let (trailer, rest) = split_at_text(bytes, b"\r\n")?;
        if trailer.is_empty() {
            return Some(rest);
        }
        bytes = rest;
    }
}

fn split_at_text<'a>(bytes: &'a [u8], text: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = bytes.windows(text.len()).position(|part| part == text)?;
    Some((&bytes[..at], &bytes[at + text.len()..]))
}
