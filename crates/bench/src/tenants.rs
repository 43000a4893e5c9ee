//! Runs in: benchmark. Measures how much one team's burst increases another team's latency. A
//! hundred clients of one team send Node.js and sleeping programs, one client of another team sends
//! `print(1)`, all over the HTTP API of a real server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::json;

use crate::{
    BenchArguments, BenchResult,
    figures::{self, LatencyFigures, print_promise},
    print_line,
    server::{BenchClient, BenchServer, find_binary},
};

/// The number of clients of the team with the burst.
const BURST_CLIENTS: usize = 100;
/// How long the burst runs before the measurement.
const RAMP: Duration = Duration::from_secs(3);
/// The maximum factor by which the other team's median may grow.
const MOST: f64 = 3.0;
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
    let (burst, quiet) =
        (server.make_key("burst", json!({}))?, server.make_key("quiet", json!({}))?);
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
