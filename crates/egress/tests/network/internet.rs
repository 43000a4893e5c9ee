//! Runs in: test. An internet of its own: three network namespaces, each that of one thread.
//!
//! *inet* has the servers, with addresses that look public and with canaries on addresses that no
//! cell may reach. *host* has the broker and a default route to *inet*. *cell* has the tun device.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command, ExitCode},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use cloche_egress::{
    BrokerClient, EgressSettings, NetworkSession, SessionSpec,
    addresses::{CELL_V4, CELL_V6, MTU, PREFIX_V4, PREFIX_V6},
};
use cloche_jail::sys;
use cloche_model::{NetworkLimits, NetworkPolicy, NetworkReport};
use cloche_test_support::skip;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::names::NameServer;

/// Servers with these addresses answer on *inet*.
pub(crate) const WEB: &str = "93.184.216.34";
pub(crate) const OTHER: &str = "93.184.216.35";
pub(crate) const WEB_V6: &str = "2606:4700::34";
const RESOLVER: &str = "93.184.216.53:53";
/// Servers on these addresses count who connects. Nobody may.
const CANARIES: [&str; 7] = [
    "169.254.169.254:80",
    "10.0.0.5:80",
    "192.168.1.1:80",
    "100.64.0.9:80",
    "93.184.216.99:80",
    "[fd00:ec2::254]:80",
    "[2606:4700::99]:25",
];

type Work = Box<dyn FnOnce() + Send>;

/// A thread with a network namespace of its own.
pub(crate) struct Namespace {
    work: mpsc::Sender<Work>,
}

impl Namespace {
    fn start() -> Self {
        let (work, queue) = mpsc::channel::<Work>();
        thread::spawn(move || {
            sys::unshare(sys::CLONE_NEWNET).unwrap();
            queue.into_iter().for_each(|work| work());
        });
        Self { work }
    }

    /// Runs a closure in the namespace. Threads that it starts stay there.
    pub(crate) fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        let (send, receive) = mpsc::channel();
        self.work.send(Box::new(move || send.send(f()).unwrap())).unwrap();
        receive.recv().expect("the closure panicked")
    }

    fn ip(&self, arguments: &str) {
        let arguments = arguments.to_owned();
        self.run(move || {
            let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
            assert!(output.status.success(), "ip {arguments}: {output:?}");
        });
    }
}

/// The internet and one cell with its session.
pub(crate) struct TestInternet {
    pub(crate) inet: Namespace,
    pub(crate) host: Namespace,
    pub(crate) cell: Namespace,
    pub(crate) names: NameServer,
    canaries: Arc<AtomicUsize>,
    runtime: tokio::runtime::Runtime,
    pub(crate) client: Option<BrokerClient>,
    session: Mutex<Option<NetworkSession>>,
    worker: Option<RunningWorker>,
    broker: Option<thread::JoinHandle<std::io::Result<()>>>,
}

/// A stack worker: a thread of the test, or a process of its own.
pub(crate) enum RunningWorker {
    Thread(thread::JoinHandle<std::io::Result<()>>),
    Process(Child),
}

impl RunningWorker {
    fn start_thread(tun: OwnedFd, socket: OwnedFd) -> Self {
        Self::Thread(thread::spawn(move || cloche_egress::stack::run(tun, socket)))
    }

    /// Starts this program again, which calls [`run_worker_process`] if it is asked to.
    pub(crate) fn start_process(tun: OwnedFd, socket: OwnedFd) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(WORKER_ARGUMENT).stdin(tun).stdout(socket);
        Self::Process(command.spawn().unwrap())
    }

    fn wait(self) {
        match self {
            Self::Thread(thread) => drop(thread.join().unwrap()),
            Self::Process(mut process) => drop(process.wait().unwrap()),
        }
    }
}

/// The argument with which a test program is a stack worker.
pub(crate) const WORKER_ARGUMENT: &str = "__stack-worker";

/// The life of a stack worker whose device and socket are its standard input and output.
pub(crate) fn run_worker_process() -> ExitCode {
    let tun = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let socket = std::io::stdout().as_fd().try_clone_to_owned().unwrap();
    // Both have copies in these numbers, which would keep them open.
    for number in 0..2 {
        sys::close(number);
    }
    ExitCode::from(u8::from(cloche_egress::stack::run(tun, socket).is_err()))
}

/// Whether this host can run these tests.
pub(crate) fn is_possible() -> bool {
    let root = rustix::process::geteuid().is_root();
    let tun = std::fs::File::options().read(true).write(true).open("/dev/net/tun").is_ok();
    let ip = Command::new("ip").arg("-V").output().is_ok();
    (root && tun && ip) || skip("networks of cells need root, /dev/net/tun and `ip`")
}

impl TestInternet {
    pub(crate) fn unrestricted() -> Self {
        Self::start(NetworkPolicy::Unrestricted, NetworkLimits::default(), settings())
    }

    pub(crate) fn allowing(rules: &[&str]) -> Self {
        let policy = NetworkPolicy::from_texts("allowlist", rules).unwrap();
        Self::start(policy, NetworkLimits::default(), settings())
    }

    pub(crate) fn start(
        policy: NetworkPolicy,
        limits: NetworkLimits,
        settings: EgressSettings,
    ) -> Self {
        Self::start_with(SessionSpec::new(policy, limits), settings, RunningWorker::start_thread)
    }

    /// The same with another way to start the worker.
    pub(crate) fn start_with(
        spec: SessionSpec,
        settings: EgressSettings,
        start_worker: fn(OwnedFd, OwnedFd) -> RunningWorker,
    ) -> Self {
        let (inet, host, cell) = (Namespace::start(), Namespace::start(), Namespace::start());
        connect_namespaces(&inet, &host);
        let names = inet.run(|| NameServer::start(RESOLVER.parse().unwrap()));
        let canaries = Arc::new(AtomicUsize::new(0));
        for canary in CANARIES {
            let canaries = Arc::clone(&canaries);
            inet.run(move || {
                serve_tcp(canary, move |_| {
                    canaries.fetch_add(1, Ordering::SeqCst);
                })
            });
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let flags = SocketFlags::CLOEXEC;
        let (ours, brokers) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let broker = host.run(move || thread::spawn(move || cloche_egress::broker::run(brokers)));
        let client = runtime.block_on(BrokerClient::connect(ours, &settings)).unwrap();
        let mut session = runtime.block_on(client.open_session(spec)).unwrap();
        let socket = session.take_stack_socket().unwrap();
        let ipv6 = client.ipv6();
        let tun = cell.run(move || make_tun(ipv6));
        let worker = start_worker(tun, socket);
        Self {
            inet,
            host,
            cell,
            names,
            canaries,
            runtime,
            client: Some(client),
            session: Mutex::new(Some(session)),
            worker: Some(worker),
            broker: Some(broker),
        }
    }

    /// Runs a closure in the cell.
    pub(crate) fn in_cell<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        self.cell.run(f)
    }

    /// A server on *inet*, with one thread for each connection.
    pub(crate) fn serve(&self, address: &str, handler: impl Fn(TcpStream) + Send + Sync + 'static) {
        let address = address.to_owned();
        self.inet.run(move || serve_tcp(&address, handler));
    }

    /// A server that answers every HTTP request with a name.
    pub(crate) fn serve_http(&self, address: &str, name: &'static str) {
        self.serve(address, move |stream| answer_http(stream, name));
    }

    /// Ends the session; asserts that no canary was reached.
    pub(crate) fn finish(mut self) -> NetworkReport {
        let session = self.session.lock().unwrap().take().unwrap();
        let report = self.runtime.block_on(session.finish());
        self.worker.take().unwrap().wait();
        assert_eq!(self.canaries.load(Ordering::SeqCst), 0, "a canary was reached");
        drop(self.client.take());
        report
    }

    /// Drops the session as a cancelled run does, and waits for its worker to end.
    pub(crate) fn drop_session(&mut self) {
        drop(self.session.lock().unwrap().take());
        self.worker.take().unwrap().wait();
    }

    /// Ends the broker: nothing can ask it any more. Waits until it and the worker have ended.
    pub(crate) fn end_broker(&mut self) -> NetworkReport {
        let session = self.session.lock().unwrap().take().unwrap();
        self.client = None;
        // The task of the client holds the socket to the broker; it ends with its runtime.
        let runtime = std::mem::replace(
            &mut self.runtime,
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        );
        runtime.shutdown_timeout(Duration::from_secs(10));
        self.broker.take().unwrap().join().unwrap().unwrap();
        self.worker.take().unwrap().wait();
        self.runtime.block_on(session.finish())
    }

    /// A namespace that reaches *inet* by a veth pair and NAT in *host*, for comparison; `None`
    /// without `iptables`.
    pub(crate) fn add_nat(&self) -> Option<Namespace> {
        Command::new("iptables").arg("-V").output().ok()?;
        let nat = Namespace::start();
        let holder = nat.run(|| Command::new("sleep").arg("30").spawn().unwrap());
        self.host.ip(&format!("link add nat0 type veth peer name nat1 netns {}", holder.id()));
        let mut holder = holder;
        holder.kill().unwrap();
        holder.wait().unwrap();
        self.host.ip("address add 10.9.9.1/24 dev nat0");
        self.host.ip("link set nat0 up");
        nat.ip("address add 10.9.9.2/24 dev nat1");
        nat.ip("link set nat1 up");
        nat.ip("route add default via 10.9.9.1");
        let forwards = self.host.run(|| {
            let rule = ["-t", "nat", "-A", "POSTROUTING", "-o", "up0", "-j", "MASQUERADE"];
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").is_ok()
                && Command::new("iptables").args(rule).status().is_ok_and(|status| status.success())
        });
        forwards.then_some(nat)
    }

    /// The process of the worker.
    pub(crate) fn worker_process(&mut self) -> &mut Child {
        match self.worker.as_mut().unwrap() {
            RunningWorker::Process(process) => process,
            RunningWorker::Thread(_) => panic!("the worker is a thread"),
        }
    }
}

pub(crate) fn settings() -> EgressSettings {
    EgressSettings {
        resolvers: vec![RESOLVER.parse().unwrap()],
        deny: vec!["93.184.216.99/32".parse().unwrap()],
        ..EgressSettings::default()
    }
}

fn connect_namespaces(inet: &Namespace, host: &Namespace) {
    host.ip("link set lo up");
    inet.ip("link set lo up");
    // `ip` takes the namespace by a process id: that of a process which sits in it.
    let holder = inet.run(|| Command::new("sleep").arg("30").spawn().unwrap());
    host.ip(&format!("link add up0 type veth peer name down0 netns {}", holder.id()));
    let mut holder = holder;
    holder.kill().unwrap();
    holder.wait().unwrap();
    host.ip("link set up0 up");
    inet.ip("link set down0 up");
    host.ip("address add 93.184.216.1/24 dev up0");
    inet.ip("address add 93.184.216.34/24 dev down0");
    for address in ["93.184.216.35", "93.184.216.53", "93.184.216.99"] {
        inet.ip(&format!("address add {address}/24 dev down0"));
    }
    for address in ["169.254.169.254", "10.0.0.5", "192.168.1.1", "100.64.0.9"] {
        inet.ip(&format!("address add {address}/32 dev lo"));
    }
    host.ip("route add default via 93.184.216.34");
    host.ip("address add 2606:4700::1/64 dev up0 nodad");
    for address in ["2606:4700::34", "2606:4700::99"] {
        inet.ip(&format!("address add {address}/64 dev down0 nodad"));
    }
    inet.ip("address add fd00:ec2::254/128 dev lo nodad");
    host.ip("route add default via 2606:4700::34");
}

/// Makes and configures the device of the cell as the spawner does.
fn make_tun(ipv6: bool) -> OwnedFd {
    use std::os::fd::AsRawFd;
    let tun = std::fs::File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    sys::make_tun(tun.as_raw_fd()).unwrap();
    sys::loopback_up().unwrap();
    sys::configure_tun(&sys::TunAddresses {
        v4: CELL_V4.octets(),
        v4_prefix: PREFIX_V4,
        v6: ipv6.then_some((CELL_V6.octets(), PREFIX_V6)),
        mtu: MTU,
    })
    .unwrap();
    tun.into()
}

fn serve_tcp(address: &str, handler: impl Fn(TcpStream) + Send + Sync + 'static) {
    let listener = TcpListener::bind(address).unwrap_or_else(|e| panic!("{address}: {e}"));
    let handler = Arc::new(handler);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let handler = Arc::clone(&handler);
            thread::spawn(move || handler(stream));
        }
    });
}

/// Answers requests without a body until the client closes.
pub(crate) fn answer_http(mut stream: TcpStream, name: &str) {
    let mut head: Vec<u8> = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        head.extend(&buffer[..len]);
        while let Some(end) = head.windows(4).position(|w| w == b"\r\n\r\n") {
            head.drain(..end + 4);
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// Connects from where it is called, with a deadline.
pub(crate) fn connect(address: &str) -> std::io::Result<TcpStream> {
    let address: SocketAddr = address.parse().unwrap();
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(20))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    Ok(stream)
}

/// Sends bytes and reads to the end, or to the first error.
pub(crate) fn exchange(address: &str, bytes: &[u8]) -> std::io::Result<String> {
    let mut stream = connect(address)?;
    stream.write_all(bytes)?;
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer).into_owned();
    match read {
        Err(error) if text.is_empty() => Err(error),
        _ => Ok(text),
    }
}

/// One request on a connection of its own; the body, or the status if it is not 200.
pub(crate) fn get(address: &str, host: &str) -> std::io::Result<String> {
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let mut stream = connect(address)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => answer.extend(&buffer[..len]),
            Err(error) if answer.is_empty() => return Err(error),
            Err(_) => break,
        }
        let text = String::from_utf8_lossy(&answer);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let len = head.lines().find_map(|line| {
                line.to_lowercase().strip_prefix("content-length: ")?.parse().ok()
            });
            if len.is_some_and(|len: usize| body.len() >= len) {
                break;
            }
        }
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    match head.starts_with("HTTP/1.1 200") {
        true => Ok(body.to_owned()),
        false => Ok(head.lines().next().unwrap_or_default().to_owned()),
    }
}

/// Echoes datagrams on *inet*.
pub(crate) fn echo_datagrams(internet: &TestInternet, address: &str) {
    let address = address.to_owned();
    internet.inet.run(move || {
        let socket = UdpSocket::bind(address).unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..len], from);
            }
        });
    });
}
