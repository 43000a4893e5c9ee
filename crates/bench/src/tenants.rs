//! Runs in: benchmark. Measures how much one team's burst increases another team's latency. A
//! hundred clients of one team send Node.js and sleeping programs, one client of another team sends
//! `print(1)`, all over the HTTP API of a real server.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    BenchArguments, BenchResult,
    figures::{self, LatencyFigures, print_promise},
    print_line,
};

/// The number of clients of the team with the burst.
const BURST_CLIENTS: usize = 100;
/// The pause between two requests of the other team's client.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the burst runs before the measurement.
const RAMP: Duration = Duration::from_secs(3);
/// The maximum factor by which the other team's median may grow.
const MOST: f64 = 3.0;
const START_LIMIT: Duration = Duration::from_secs(60);
/// The programs of the burst; each client runs one of them.
const PROGRAMS: [(&str, &str); 2] =
    [("node", "console.log(1)"), ("python", "import time; time.sleep(1)")];

/// Measures this, if requested.
pub(crate) fn measure_tenants(arguments: &BenchArguments) -> BenchResult<()> {
    let name = "tenants";
    if !arguments.only.is_empty() && !arguments.only.iter().any(|part| name.contains(part.as_str()))
    {
        return Ok(());
    }
    let Some(binary) = find_binary(arguments) else {
        print_line("\nskipped: tenants: no cloche binary beside this one; give --server PATH");
        return Ok(());
    };
    let server = BenchServer::start(&binary)?;
    let (burst, quiet) = (server.make_team("burst")?, server.make_team("quiet")?);
    let rounds = arguments.rounds;
    let one = |name: &str| -> BenchResult<LatencyFigures> {
        let mut client = BenchClient::connect(&server.address, &quiet)?;
        let times = (0..rounds).map(|_| client.time_print_one());
        Ok(LatencyFigures::new(name.to_owned(), times.collect::<BenchResult<Vec<_>>>()?))
    };
    one("warm-up")?;
    let alone = one("print(1), host at rest")?;
    let load = BurstLoad::start(&server.address, &burst);
    thread::sleep(RAMP);
    let beside = one("print(1), beside 100 clients");
    let (served, refused) = load.stop();
    let beside = beside?;
    let after = one("print(1), host at rest again")?;
    let ratio = beside.percentile(50) / alone.percentile(50);
    figures::print_table(&[alone, beside, after]);
    print_line(&format!("\nthe burst in that time: {served} runs succeeded, {refused} refused"));
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    print_promise("print(1) beside another team's burst : at rest, p50", MOST, ratio);
    Ok(())
}

fn find_binary(arguments: &BenchArguments) -> Option<PathBuf> {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("cloche"));
    arguments.server.clone().or_else(beside).filter(|path| path.exists())
}

/// A server with a directory and port of its own.
struct BenchServer {
    child: Child,
    address: String,
    admin: String,
    _directory: TempDir,
}

impl BenchServer {
    fn start(binary: &Path) -> BenchResult<Self> {
        let directory = TempDir::new()?;
        let data = directory.path().join("data");
        let child = Command::new(binary)
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(directory.path().join("log"))?)
            .spawn()?;
        let mut server =
            Self { child, address: String::new(), admin: String::new(), _directory: directory };
        let deadline = Instant::now() + START_LIMIT;
        while !server.is_ready(&data) {
            if Instant::now() > deadline || server.child.try_wait()?.is_some() {
                return Err("the server did not get ready".into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
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

    /// Creates a team with a sandbox and a key. Returns the key.
    fn make_team(&self, name: &str) -> BenchResult<String> {
        let mut client = BenchClient::connect(&self.address, &self.admin)?;
        let mut post = |what: &str, body: Value| -> BenchResult<Value> {
            let (status, answer) =
                client.send_request("POST", &format!("/v1/admin/{what}"), &body)?;
            if status >= 300 {
                return Err(format!("{what}: {status} {answer}").into());
            }
            Ok(answer)
        };
        post("teams", json!({"name": name, "plan": "pro"}))?;
        post("sandboxes", json!({"team": name, "name": "bench"}))?;
        let key = post("keys", json!({"team": name, "sandbox": "bench", "name": "bench"}))?;
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

/// The clients of the burst, one thread each.
struct BurstLoad {
    is_over: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
    clients: Vec<thread::JoinHandle<()>>,
}

impl BurstLoad {
    fn start(address: &str, key: &str) -> Self {
        let (is_over, served, refused) = <(Arc<_>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let clients = (0..BURST_CLIENTS).map(|at| {
            let (address, key) = (address.to_owned(), key.to_owned());
            let (is_over, served, refused) =
                (Arc::clone(&is_over), Arc::clone(&served), Arc::clone(&refused));
            let (language, code) = PROGRAMS[at % PROGRAMS.len()];
            let body = json!({"language": language, "code": code});
            thread::spawn(move || {
                let Ok(mut client) = BenchClient::connect(&address, &key) else { return };
                while !AtomicBool::load(&is_over, Ordering::Relaxed) {
                    match client.send_request("POST", "/v1/sandbox/execute", &body) {
                        Ok((200, _)) => served.fetch_add(1, Ordering::Relaxed),
                        Ok(_) => {
                            thread::sleep(Duration::from_millis(200));
                            refused.fetch_add(1, Ordering::Relaxed)
                        }
                        Err(_) => return,
                    };
                }
            })
        });
        Self { clients: clients.collect(), is_over, served, refused }
    }

    /// Ends the burst. Returns the numbers of successful and refused runs so far.
    fn stop(self) -> (usize, usize) {
        let counts = (self.served.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed));
        self.is_over.store(true, Ordering::Relaxed);
        for client in self.clients {
            let _ = client.join();
        }
        counts
    }
}

/// A persistent connection.
struct BenchClient {
    stream: BufReader<TcpStream>,
    key: String,
}

impl BenchClient {
    fn connect(address: &str, key: &str) -> BenchResult<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        Ok(Self { stream: BufReader::new(stream), key: key.to_owned() })
    }

    /// Runs `print(1)`. Returns the time of the response.
    fn time_print_one(&mut self) -> BenchResult<Duration> {
        thread::sleep(PAUSE);
        let began = Instant::now();
        let (status, answer) =
            self.send_request("POST", "/v1/sandbox/execute", &json!({"code": "print(1)"}))?;
        let took = began.elapsed();
        if status != 200 || answer["stdout"] != "1\n" {
            return Err(format!("print(1): {status} {answer}").into());
        }
        Ok(took)
    }

    fn send_request(
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
