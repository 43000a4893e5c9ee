//! Runs in: benchmark. A real server, and a client of it over a persistent connection.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{BenchArguments, BenchResult};

/// The pause before a request, in which the pool is refilled as in an idle server.
const PAUSE: Duration = Duration::from_millis(20);
const START_LIMIT: Duration = Duration::from_secs(60);

/// The binary whose server is measured, if there is one.
pub(crate) fn find_binary(arguments: &BenchArguments) -> Option<PathBuf> {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("cloche"));
    arguments.server.clone().or_else(beside).filter(|path| path.exists())
}

/// A server with a directory and port of its own.
pub(crate) struct BenchServer {
    child: Child,
    pub(crate) address: String,
    admin: String,
    directory: TempDir,
}

impl BenchServer {
    pub(crate) fn start(binary: &Path) -> BenchResult<Self> {
        let directory = TempDir::new()?;
        let child = spawn_server(binary, directory.path())?;
        let mut server = Self { child, address: String::new(), admin: String::new(), directory };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Ends the server; its data stays.
    pub(crate) fn stop(&mut self) -> BenchResult<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it on the data that it left, at another address.
    pub(crate) fn start_again(&mut self, binary: &Path) -> BenchResult<()> {
        self.child = spawn_server(binary, self.directory.path())?;
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> BenchResult<()> {
        let data = self.data();
        let deadline = Instant::now() + START_LIMIT;
        while !self.is_ready(&data) {
            if Instant::now() > deadline || self.child.try_wait()?.is_some() {
                return Err("the server did not get ready".into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn is_ready(&mut self, data: &Path) -> bool {
        let Ok(text) = std::fs::read(data.join("bootstrap.json")) else { return false };
        let Ok(known) = serde_json::from_slice::<Value>(&text) else { return false };
        let text = |name: &str| known[name].as_str().unwrap_or_default().to_owned();
        self.address = text("url").trim_start_matches("http://").to_owned();
        self.admin = text("admin_token");
        let ready = BenchClient::connect(&self.address, "")
            .and_then(|mut client| client.send_request("GET", "/readyz", &Value::Null));
        ready.is_ok_and(|(status, _)| status == 200)
    }

    /// The process of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Creates a team with a sandbox of these settings and a key. Returns the key.
    pub(crate) fn make_key(&self, name: &str, mut sandbox: Value) -> BenchResult<String> {
        let mut client = BenchClient::connect(&self.address, &self.admin)?;
        let mut post = |what: &str, body: &Value| -> BenchResult<Value> {
            let (status, answer) =
                client.send_request("POST", &format!("/v1/admin/{what}"), body)?;
            if status >= 300 {
                return Err(format!("{what}: {status} {answer}").into());
            }
            Ok(answer)
        };
        post("teams", &json!({"name": name, "plan": "pro"}))?;
        sandbox["team"] = json!(name);
        sandbox["name"] = json!("bench");
        post("sandboxes", &sandbox)?;
        let key = post("keys", &json!({"team": name, "sandbox": "bench", "name": "bench"}))?;
        Ok(key["key"].as_str().unwrap_or_default().to_owned())
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        // The spawner and its cells end when the server's socket is closed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn_server(binary: &Path, directory: &Path) -> io::Result<Child> {
    Command::new(binary)
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(directory.join("data"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(directory.join("log"))?)
        .spawn()
}

/// A persistent connection.
pub(crate) struct BenchClient {
    stream: BufReader<TcpStream>,
    key: String,
    /// The `Server-Timing` header of the last answer; empty if it had none.
    pub(crate) server_timing: String,
}

impl BenchClient {
    pub(crate) fn connect(address: &str, key: &str) -> BenchResult<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        let (stream, server_timing) = (BufReader::new(stream), String::new());
        Ok(Self { stream, key: key.to_owned(), server_timing })
    }

    /// Runs `print(1)`. Returns the time of the response.
    pub(crate) fn time_print_one(&mut self) -> BenchResult<Duration> {
        Ok(self.time_program("print(1)", "1\n")?.0)
    }

    /// Runs a Python program whose output begins with this. Returns the time of the response, and
    /// the output.
    pub(crate) fn time_program(
        &mut self,
        code: &str,
        begins: &str,
    ) -> BenchResult<(Duration, String)> {
        thread::sleep(PAUSE);
        let began = Instant::now();
        let (status, answer) =
            self.send_request("POST", "/v1/sandbox/execute", &json!({"code": code}))?;
        let took = began.elapsed();
        let printed = answer["stdout"].as_str().unwrap_or_default();
        if status != 200 || !printed.starts_with(begins) {
            return Err(format!("{code}: {status} {answer}").into());
        }
        Ok((took, printed.to_owned()))
    }

    pub(crate) fn send_request(
        &mut self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> BenchResult<(u16, Value)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.key,
            body.len()
        );
        self.server_timing.clear();
        self.stream.get_mut().write_all((head + &body).as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("not HTTP: {line:?}")))?;
        let (mut length, mut is_chunked) = (0_usize, false);
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let lower = line.trim_end().to_ascii_lowercase();
            if lower.is_empty() {
                break;
            }
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            if let Some(value) = lower.strip_prefix("server-timing:") {
                value.trim().clone_into(&mut self.server_timing);
            }
            is_chunked |= lower == "transfer-encoding: chunked";
        }
        let answer = if is_chunked { self.read_chunks()? } else { self.read_bytes(length)? };
        Ok((status, serde_json::from_slice(&answer).unwrap_or(Value::Null)))
    }

    fn read_bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn read_chunks(&mut self) -> BenchResult<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim(), 16)?;
            all.extend(self.read_bytes(length)?);
            self.read_bytes(2)?;
            if length == 0 {
                return Ok(all);
            }
        }
    }
}
