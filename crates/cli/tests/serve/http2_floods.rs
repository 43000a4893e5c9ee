//! Runs in: test.
//!
//! Floods of HTTP/2 frames: the connection is closed, memory stays bounded, and others are served.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, tcp::OwnedWriteHalf},
    time::timeout,
};

use crate::{
    host::{Host, PATIENCE},
    memory::{reset_peak, status},
};

const MIB: u64 = 1 << 20;
/// The preface and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `GET http://x/healthz`: indexed fields and two literals that are not indexed.
const REQUEST: &[u8] = b"\x82\x86\x04\x08/healthz\x01\x01x";
/// How many frames are sent, if the server lets them: 200 MiB of headers, 200,000 streams.
const FRAMES: u32 = 200_000;
/// How long a flood goes on if the server takes it.
const LONGEST: Duration = Duration::from_secs(10);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Sends frames until the server closes the connection; gives how many frames were taken, and what the
/// server said.
async fn flood(host: &Host, frames: impl Fn(u32) -> Vec<u8>) -> (u32, Vec<u8>) {
    let address: SocketAddr = host.url.strip_prefix("http://").unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(PREFACE).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let said = tokio::spawn(async move {
        let mut said = Vec::new();
        // A reset is an end, too.
        let _ = reader.read_to_end(&mut said).await;
        said
    });
    let sent = send_all(&mut writer, frames).await;
    let said = timeout(PATIENCE, said).await.expect("the connection is still open").unwrap();
    (sent, said)
}

async fn send_all(writer: &mut OwnedWriteHalf, frames: impl Fn(u32) -> Vec<u8>) -> u32 {
    let started = Instant::now();
    for number in 0..FRAMES {
        let sent = timeout(PATIENCE, writer.write_all(&frames(number))).await;
        let is_taken = sent.expect("the server neither reads nor closes").is_ok();
        if !is_taken || started.elapsed() > LONGEST {
            return number;
        }
    }
    FRAMES
}

/// The error code of the last GOAWAY frame.
fn goaway(mut said: &[u8]) -> Option<u32> {
    let mut code = None;
    while said.len() >= 9 {
        let length = u32::from_be_bytes([0, said[0], said[1], said[2]]) as usize;
        let payload = said.get(9..9 + length)?;
        if said[3] == GOAWAY {
            code = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        said = &said[9 + length..];
    }
    code
}

/// Floods from several connections while another client is served; the server grows by no more than
/// this, and every flood is cut short.
async fn assert_harmless(frames: impl Fn(u32) -> Vec<u8> + Copy) {
    let Some(host) = Host::start().await else { return };
    host.run(json!({ "code": "print(1)" })).await;
    let before = reset_peak(&host);
    let served = async {
        for _ in 0..3 {
            let request = host.run(json!({ "code": "print(1)" }));
            let (status, result) = timeout(PATIENCE, request).await.expect("no answer");
            assert_eq!((status, &result["stdout"]), (200, &json!("1\n")));
        }
    };
    let floods = futures::future::join_all((0..4).map(|_| flood(&host, frames)));
    let (floods, ()) = tokio::join!(floods, served);
    for (sent, said) in floods {
        assert!(sent < FRAMES / 2, "{sent} frames were taken");
        // ENHANCE_YOUR_CALM, or PROTOCOL_ERROR; it may be lost where a reset overtakes it.
        assert!([None, Some(11), Some(1)].contains(&goaway(&said)), "{:?}", goaway(&said));
    }
    let grown = status(&host, "VmHWM").saturating_sub(before);
    assert!(grown <= 32 * MIB, "{} MiB", grown / MIB);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_reset_at_once_end_the_connection() {
    assert_harmless(|number| {
        let stream = 2 * number + 1;
        let mut frames = frame(HEADERS, END_STREAM | END_HEADERS, stream, REQUEST);
        frames.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        frames
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_never_end_end_the_connection() {
    // A literal field that is not indexed, of a kilobyte.
    let field = {
        let mut field = b"\x00\x01a\x7f\x81\x07".to_vec();
        field.extend([b'b'; 1024]);
        field
    };
    let field: &[u8] = field.leak();
    assert_harmless(|number| match number {
        0 => frame(HEADERS, END_STREAM, 1, REQUEST),
        _ => frame(CONTINUATION, 0, 1, field),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_pieces_of_headers_end_the_connection() {
    assert_harmless(|number| match number {
        0 => frame(HEADERS, END_STREAM, 1, REQUEST),
        _ => frame(CONTINUATION, 0, 1, b""),
    })
    .await;
}
