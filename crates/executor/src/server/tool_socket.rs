//! Runs in: server (no capabilities). The server's end of the socket through which the code of one
//! run calls web tools: reads requests with bounds, and writes the answers of another part.
//!
//! It does not know what a request says. One connection carries one request, a line, and one
//! answer.

use std::{io, os::fd::OwnedFd, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};

/// The most bytes of a request, with its newline.
const MAX_REQUEST: usize = (16 << 10) + 1;
/// Connections that are served at once. Further ones wait to be accepted.
const AT_ONCE: usize = 4;
/// Connections of one run. After them none is accepted.
const MAX_CONNECTIONS: usize = 1_000;
/// How long a guest may take to send its request, and to read its answer.
const GUEST_TIME: Duration = Duration::from_secs(10);

/// A request of a guest, and where its answer goes.
#[derive(Debug)]
pub struct CellCall {
    /// The bytes of the request.
    pub request: Vec<u8>,
    /// Takes the bytes of the answer. If it is dropped, the connection is closed.
    pub answer: oneshot::Sender<Vec<u8>>,
}

/// The listener of one run.
pub(crate) struct ToolSocket {
    listener: UnixListener,
    calls: mpsc::Sender<CellCall>,
}

impl ToolSocket {
    pub(crate) fn new(listener: OwnedFd, calls: mpsc::Sender<CellCall>) -> io::Result<Self> {
        let listener = std::os::unix::net::UnixListener::from(listener);
        listener.set_nonblocking(true)?;
        Ok(Self { listener: UnixListener::from_std(listener)?, calls })
    }

    /// Serves connections until it is dropped, which closes all of them.
    pub(crate) async fn serve(self) {
        let mut connections = JoinSet::new();
        for _ in 0..MAX_CONNECTIONS {
            while connections.len() >= AT_ONCE {
                connections.join_next().await;
            }
            let Ok((connection, _)) = self.listener.accept().await else { return };
            connections.spawn(serve_connection(connection, self.calls.clone()));
        }
        drop(self.listener);
        while connections.join_next().await.is_some() {}
    }
}

/// One request and its answer. A guest that sends too much or is too slow is cut off.
async fn serve_connection(mut connection: UnixStream, calls: mpsc::Sender<CellCall>) {
    let Ok(Some(request)) = timeout(GUEST_TIME, read_request(&mut connection)).await else {
        return;
    };
    let (answer, answered) = oneshot::channel();
    if calls.send(CellCall { request, answer }).await.is_err() {
        return;
    }
    let Ok(answer) = answered.await else { return };
    let _ = timeout(GUEST_TIME, connection.write_all(&answer)).await;
}

/// Reads a line, or everything up to the end. Descriptors that a guest sends along are dropped by
/// the kernel, because none is asked for.
async fn read_request(connection: &mut UnixStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let length = connection.read(&mut buffer).await.ok()?;
        request.extend_from_slice(&buffer[..length]);
        if let Some(end) = request.iter().position(|byte| *byte == b'\n') {
            request.truncate(end);
            return Some(request);
        }
        if length == 0 || request.len() >= MAX_REQUEST {
            // What is too long is answered, not cut off: the reader of the request refuses it.
            return (!request.is_empty()).then_some(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connects to a socket whose calls are answered by their length.
    async fn ask(request: &[u8]) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (calls, mut asked) = mpsc::channel::<CellCall>(1);
        let serving = tokio::spawn(ToolSocket::new(listener.into(), calls).unwrap().serve());
        tokio::spawn(async move {
            while let Some(call) = asked.recv().await {
                let _ = call.answer.send(call.request.len().to_string().into_bytes());
            }
        });
        let mut guest = UnixStream::connect(&path).await.unwrap();
        let _ = guest.write_all(request).await;
        let _ = guest.shutdown().await;
        let mut answer = Vec::new();
        let _ = guest.read_to_end(&mut answer).await;
        serving.abort();
        answer
    }

    #[tokio::test]
    async fn a_request_is_a_line_or_what_there_is() {
        assert_eq!(ask(b"abc\nrest").await, b"3");
        assert_eq!(ask(b"abcd").await, b"4");
        assert_eq!(ask(b"").await, b"");
    }

    #[tokio::test]
    async fn a_request_without_end_is_bounded() {
        let answer = String::from_utf8(ask(&vec![b'x'; 8 << 20]).await).unwrap();
        // The guest may be cut off before it has read the answer, because it still sends.
        assert!(answer.is_empty() || answer.parse::<usize>().unwrap() < MAX_REQUEST + 4096);
    }

    #[tokio::test]
    async fn connections_are_served_a_few_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (calls, mut asked) = mpsc::channel::<CellCall>(64);
        let serving = tokio::spawn(ToolSocket::new(listener.into(), calls).unwrap().serve());
        let mut guests = Vec::new();
        for _ in 0..AT_ONCE + 3 {
            let mut guest = UnixStream::connect(&path).await.unwrap();
            guest.write_all(b"x\n").await.unwrap();
            guests.push(guest);
        }
        let mut held = Vec::new();
        for _ in 0..AT_ONCE {
            held.push(asked.recv().await.unwrap());
        }
        assert!(asked.try_recv().is_err(), "one more than allowed was served");
        held.pop().unwrap().answer.send(b"done".to_vec()).unwrap();
        held.push(asked.recv().await.unwrap());
        serving.abort();
    }
}
