//! Runs in: `cloche doctor`.
//!
//! Whether sandboxes can have a network on this host: runs a program in a cell with one, and looks
//! for its device. Nothing is sent.

use cloche_egress::EgressSettings;
use cloche_executor::{Executor, ExecutorConfig, RunIo};
use cloche_model::{Language, NetworkPolicy, RunSpec, error_chain};
use serde::Serialize;

use crate::network::BrokerProcess;

/// Whether a cell can have a network.
#[derive(Serialize)]
pub(super) struct NetworkFinding {
    pub(super) works: bool,
    /// Why not.
    pub(super) why: Option<String>,
    /// How to get it.
    pub(super) how: Option<&'static str>,
}

/// What a host needs.
const HOW: &str = "access to /dev/net/tun: `modprobe tun`; as an ordinary user also \
    `chmod 0666 /dev/net/tun`; in a container `--device /dev/net/tun`";

/// Tries a cell with a network.
pub(super) async fn examine_network(config: ExecutorConfig) -> NetworkFinding {
    match try_network(config).await {
        Ok(()) => NetworkFinding { works: true, why: None, how: None },
        Err(why) => NetworkFinding { works: false, why: Some(why), how: Some(HOW) },
    }
}

async fn try_network(config: ExecutorConfig) -> Result<(), String> {
    let said = |error: &dyn std::error::Error| error_chain(error);
    let broker = BrokerProcess::start(&config.program, EgressSettings::default());
    let broker = broker.map_err(|error| said(&error))?.connect().await;
    let broker = Some(broker.map_err(|error| said(&error))?);
    let executor = Executor::start(ExecutorConfig { broker, ..config }).await;
    let executor = executor.map_err(|error| said(&error))?;
    let mut spec = RunSpec::new(Language::Bash, "cat /proc/net/dev");
    spec.sandbox.network = NetworkPolicy::Unrestricted;
    let outcome = executor.run(spec, RunIo::default()).await;
    executor.stop().await;
    let shown = outcome.map_err(|error| said(&error))?.stdout.to_text_lossy();
    match shown.contains("net0:") {
        true => Ok(()),
        false => Err("the cell has no network device".to_owned()),
    }
}

/// The finding as lines of the table.
pub(super) fn network_lines(finding: &NetworkFinding) -> Vec<String> {
    let mark = if finding.works { "ok     " } else { "none   " };
    let mut lines = vec![format!("{mark}  {:<18} sandboxes can have a network", "network")];
    lines.extend(finding.why.iter().map(|why| format!("          why: {why}")));
    lines.extend(finding.how.iter().map(|how| format!("          how: {how}")));
    lines
}
