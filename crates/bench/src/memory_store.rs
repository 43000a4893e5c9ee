//! An S3 server that answers from memory: one object of 100 MB, and 1,000 of 4 KiB. It is as fast as
//! a store can be, so that what a mount adds is not hidden behind it.

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::BenchResult;

const BIG: usize = 100_000_000;
const SMALL: usize = 4096;
const SMALL_FILES: usize = 1000;

/// A running server.
pub(crate) struct MemoryStore {
    pub(crate) endpoint: String,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl MemoryStore {
    pub(crate) async fn start() -> BenchResult<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let content = Bytes::from(vec![7; BIG]);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let content = content.clone();
                tokio::spawn(async move {
                    // A client that closes its connection ends this.
                    let _ = serve_connection(stream, content).await;
                });
            }
        });
        Ok(Self { endpoint, task })
    }
}

async fn serve_connection(mut stream: TcpStream, content: Bytes) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            let mut chunk = [0; 4096];
            match stream.read(&mut chunk).await? {
                0 => return Ok(()),
                read => buffer.extend_from_slice(&chunk[..read]),
            }
        };
        let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
        buffer.drain(..end);
        let (head, body) = answer(&head, &content);
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&body).await?;
    }
}

const META: &str = "etag: \"1\"\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";

fn answer(head: &str, content: &Bytes) -> (String, Bytes) {
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    if target.contains("list-type=2") {
        let body = Bytes::from(listing(target));
        return (format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()), body);
    }
    let size = match target {
        "/bench/big" => BIG,
        target if target.starts_with("/bench/small/") => SMALL,
        _ => {
            return (
                "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
                Bytes::new(),
            );
        }
    };
    if method == "head" {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n{META}\r\n");
        return (head, Bytes::new());
    }
    let range = head.lines().find_map(|line| {
        let (from, to) = line.strip_prefix("range: bytes=")?.split_once('-')?;
        Some((from.parse::<usize>().ok()?, to.parse::<usize>().ok()?.min(size - 1)))
    });
    match range {
        Some((from, to)) => {
            let body = content.slice(from..=to);
            let length = body.len();
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\ncontent-length: {length}\r\n\
                 content-range: bytes {from}-{to}/{size}\r\n{META}\r\n"
            );
            (head, body)
        }
        None => (
            format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n{META}\r\n"),
            content.slice(..size),
        ),
    }
}

fn listing(target: &str) -> String {
    let entry = |key: String, size: usize| {
        format!(
            "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>\"1\"</ETag>\
             <LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        )
    };
    let prefix = target.split(['?', '&']).find_map(|part| part.strip_prefix("prefix="));
    let entries: String = match prefix.unwrap_or_default() {
        prefix if prefix.starts_with("small") => {
            (0..SMALL_FILES).map(|n| entry(format!("small/{n:04}"), SMALL)).collect()
        }
        // No object is below another one.
        prefix if !prefix.is_empty() => String::new(),
        _ => {
            entry("big".to_owned(), BIG)
                + "<CommonPrefixes><Prefix>small/</Prefix></CommonPrefixes>"
        }
    };
    format!(
        "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
    )
}
