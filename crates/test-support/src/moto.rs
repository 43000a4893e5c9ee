//! Runs in: test. A real S3 server for one test, with a bucket named `layers`.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::skip;

/// A server with one bucket. Dropping it kills the server.
pub struct Moto {
    child: Child,
    /// Where it listens: host and port.
    pub address: String,
}

impl Moto {
    /// Starts a server. Skips the test with a message if moto is not installed.
    pub fn start() -> Option<Self> {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/bin/moto_server");
        if !Path::new(program).exists() {
            skip("moto_server is not in .venv: run scripts/setup-tests");
            return None;
        }
        let mut child = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("http://")?.1.trim().to_owned()))
            .expect("moto did not start");
        // Drains its output, so that it does not block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let server = Self { child, address };
        let request = format!(
            "PUT /layers HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            server.address
        );
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Some(server)
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
