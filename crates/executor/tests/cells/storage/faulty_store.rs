//! Runs in: test. An S3 server that misbehaves: one object, and one fault at a time.

use std::{sync::Arc, time::Duration};

use switch::Switch;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Barrier,
};

/// How it misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not at all.
    None,
    /// Every request is answered with 503.
    Unavailable,
    /// Connections are closed in the middle of an answer.
    Drops,
    /// Requests are never answered.
    Hangs,
    /// Bodies are shorter than their length says, and the connection is closed.
    Lies,
    /// One byte in a while.
    Slow,
    /// Each page of a listing has a next one, always the same.
    EndlessListing,
    /// The object has another tag at each request.
    ChangingTag,
    /// 403 for everything.
    Denied,
}

mod switch {
    use std::sync::Mutex;

    /// A value that a test changes while a server runs.
    pub(crate) struct Switch<T>(Mutex<T>);

    impl<T: Copy> Switch<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        pub(crate) fn get(&self) -> T {
            *self.0.lock().unwrap()
        }

        pub(crate) fn set(&self, value: T) {
            *self.0.lock().unwrap() = value;
        }
    }
}

/// A running server. Its object is `data.bin`, with [`FaultyStore::SIZE`] bytes.
pub(crate) struct FaultyStore {
    pub(crate) endpoint: String,
    fault: Arc<Switch<Fault>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for FaultyStore {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FaultyStore {
    pub(crate) const SIZE: usize = 3 << 20;

    pub(crate) async fn start(fault: Fault) -> Self {
        Self::start_at(fault, Arc::new(Barrier::new(1))).await
    }

    /// Answers nothing until every store of the barrier has a connection.
    pub(crate) async fn start_at(fault: Fault, barrier: Arc<Barrier>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let fault = Arc::new(Switch::new(fault));
        let shared = Arc::clone(&fault);
        let task = tokio::spawn(async move {
            let mut others = Some(barrier);
            while let Ok((stream, _)) = listener.accept().await {
                if let Some(others) = others.take() {
                    others.wait().await;
                }
                tokio::spawn(serve_connection(stream, Arc::clone(&shared)));
            }
        });
        Self { endpoint, fault, task }
    }

    pub(crate) fn set_fault(&self, fault: Fault) {
        self.fault.set(fault);
    }
}

/// The content of the object.
fn content() -> Vec<u8> {
    (0..FaultyStore::SIZE).map(|at| (at / 1024) as u8).collect()
}

async fn serve_connection(mut stream: TcpStream, fault: Arc<Switch<Fault>>) {
    let mut tag = 0_u64;
    let mut buffer = Vec::new();
    loop {
        let head_end = loop {
            if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            let mut chunk = [0; 8192];
            match stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return,
                Ok(read) => buffer.extend_from_slice(&chunk[..read]),
            }
        };
        let head = String::from_utf8_lossy(&buffer[..head_end]).to_ascii_lowercase();
        buffer.drain(..head_end);
        let body_len = header(&head, "content-length").and_then(|len| len.parse().ok());
        let body_len: usize = body_len.unwrap_or(0);
        while buffer.len() < body_len {
            let mut chunk = [0; 8192];
            match stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return,
                Ok(read) => buffer.extend_from_slice(&chunk[..read]),
            }
        }
        buffer.drain(..body_len);
        tag += 1;
        if answer(&mut stream, &head, fault.get(), tag).await.is_none() {
            return;
        }
    }
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Answers one request; `None` ends the connection.
#[expect(clippy::too_many_lines, reason = "one protocol, one arm for each request")]
async fn answer(stream: &mut TcpStream, head: &str, fault: Fault, serial: u64) -> Option<()> {
    let (method, rest) = head.split_once(' ')?;
    let target = rest.split(' ').next()?;
    let send = |status: &str, headers: String, body: Vec<u8>| {
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
        (head, body)
    };
    match fault {
        Fault::Hangs => std::future::pending::<()>().await,
        Fault::Unavailable => {
            let (head, body) = send("503 Slow Down", String::new(), b"<Error/>".to_vec());
            return write(stream, &head, &body).await;
        }
        Fault::Denied => {
            let (head, body) = send("403 Forbidden", String::new(), Vec::new());
            return write(stream, &head, &body).await;
        }
        _ => {}
    }
    if target.contains("list-type=2") {
        let (token, more) = match fault {
            Fault::EndlessListing => ("<NextContinuationToken>x</NextContinuationToken>", "true"),
            _ => ("", "false"),
        };
        let prefix = target.split(['?', '&']).find_map(|pair| pair.strip_prefix("prefix="));
        let below_data = prefix.is_some_and(|prefix| !prefix.is_empty());
        let entry = match below_data || fault == Fault::EndlessListing {
            true => String::new(),
            false => format!(
                "<Contents><Key>data.bin</Key><Size>{}</Size><ETag>\"1\"</ETag>\
                 <LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>",
                FaultyStore::SIZE
            ),
        };
        let body = format!(
            "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>{more}</IsTruncated>{entry}{token}\
             </ListBucketResult>"
        );
        let (head, body) = send("200 OK", "content-type: application/xml\r\n".into(), body.into());
        return write(stream, &head, &body).await;
    }
    if !target.contains("/data.bin") {
        let (head, body) = send("404 Not Found", String::new(), Vec::new());
        return write(stream, &head, &body).await;
    }
    let tag = if fault == Fault::ChangingTag { serial + 100 } else { 1 };
    if let Some(wanted) = header(head, "if-match")
        && wanted != format!("\"{tag}\"")
    {
        let (head, body) = send("412 Precondition Failed", String::new(), Vec::new());
        return write(stream, &head, &body).await;
    }
    let all = content();
    let meta = format!("etag: \"{tag}\"\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n");
    if method == "head" {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{meta}\r\n", all.len());
        return write(stream, &head, &[]).await;
    }
    let range = header(head, "range").and_then(|range| {
        let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some((from.parse::<usize>().ok()?, to.parse::<usize>().ok()?))
    });
    let (from, to) = range.unwrap_or((0, all.len() - 1));
    let part = &all[from..(to + 1).min(all.len())];
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\n\
         content-range: bytes {from}-{}/{}\r\n{meta}\r\n",
        part.len(),
        from + part.len() - 1,
        all.len()
    );
    match fault {
        Fault::Drops | Fault::Lies => {
            write(stream, &head, &part[..part.len() / 3]).await?;
            None
        }
        Fault::Slow => {
            write(stream, &head, &[]).await?;
            for byte in part {
                write(stream, "", &[*byte]).await?;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Some(())
        }
        _ => write(stream, &head, part).await,
    }
}

async fn write(stream: &mut TcpStream, head: &str, body: &[u8]) -> Option<()> {
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(body).await.ok()
}
