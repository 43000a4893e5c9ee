//! Runs in: test. Object stores of other kinds for one test: Azure Blob Storage and Google Cloud
//! Storage.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use crate::{moto::Moto, skip};

const AZURITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.conformance/node_modules/.bin");
const CONTAINER_PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/azure_container.py");
const GATEWAY_PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/gcs_gateway.py");

/// A process that is killed with this value.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Service {
    /// Starts a program, and waits for the line with its address. Returns the address.
    fn start(command: &mut Command) -> (Self, String) {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = find_address(&mut lines).expect("the service did not start");
        // Drains its output, so that it does not block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        (Self(child), address)
    }
}

fn find_address(lines: &mut std::io::Lines<BufReader<ChildStdout>>) -> Option<String> {
    let mut found = lines.by_ref().map_while(Result::ok);
    found.find_map(|line| Some(format!("http://{}", line.split_once("http://")?.1.trim())))
}

/// An Azure storage account with one container named `data`.
pub struct Azurite {
    _service: Service,
    /// The URL of the account.
    pub endpoint: String,
}

impl Azurite {
    /// The name of the account.
    pub const ACCOUNT: &str = "devstoreaccount1";
    /// Its key, which every emulator has.
    pub const KEY: &str =
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

    /// Starts the emulator. Skips the test with a message if it is not installed.
    pub fn start() -> Option<Self> {
        let programs = Path::new(AZURITE);
        if !programs.join("azurite-blob").exists() {
            skip("azurite is not in .conformance: run scripts/setup-tests");
            return None;
        }
        let mut command = Command::new(programs.join("node"));
        command.arg(programs.join("azurite-blob"));
        command.args(["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence"]);
        command.args(["--skipApiVersionCheck", "--disableTelemetry", "--silent"]);
        let (service, address) = Service::start(&mut command);
        let endpoint = format!("{address}/{}", Self::ACCOUNT);
        let words = [CONTAINER_PROGRAM, &endpoint, Self::ACCOUNT, Self::KEY, "data"];
        let made = Command::new("python3").args(words).status().unwrap();
        assert!(made.success(), "{made}");
        Some(Self { _service: service, endpoint })
    }
}

/// Google's XML API with its generations in front of an S3 server: no emulator has that API.
pub struct GcsGateway {
    _service: Service,
    /// Its URL.
    pub endpoint: String,
}

impl GcsGateway {
    /// Starts a gateway to the bucket of an S3 server.
    #[must_use]
    pub fn start(moto: &Moto) -> Self {
        let mut command = Command::new("python3");
        let (service, endpoint) = Service::start(command.args([GATEWAY_PROGRAM, &moto.address]));
        Self { _service: service, endpoint }
    }
}
