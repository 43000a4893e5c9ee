//! Runs in: server (no capabilities). The network of one run: a session with the broker, attached to
//! its cell.
//!
//! A run whose sandbox has a network never runs without one by mistake: if the session cannot be
//! opened or attached, the program is not started.

use std::time::Duration;

use cloche_egress::{BrokerClient, NetworkSession, SessionError, SessionSpec};
use cloche_model::{NetworkPolicy, NetworkReport, RunSpec, Substrate};
use tokio::time::timeout;

use super::{
    cell::Cell,
    cell_trust::CellTrust,
    spawner_client::{SpawnError, SpawnerClient},
};

/// How long a run waits for an answer of the broker.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Why a run could not get its network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The executor was started without a broker.
    #[error("this executor gives programs no network")]
    NoBroker,
    /// The cell is built by an OCI runtime.
    #[error("a network needs the substrate native")]
    OtherSubstrate,
    /// The broker opened no session.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The broker did not answer.
    #[error("the network broker did not answer within {} s", ANSWER_LIMIT.as_secs())]
    Silent,
    /// The spawner could not attach it to the cell.
    #[error("the network could not be attached to the cell")]
    Attach(#[source] SpawnError),
}

/// The network of a run. Dropping it ends the network.
pub(crate) struct CellNetwork {
    session: NetworkSession,
}

impl CellNetwork {
    /// Opens the session of a run; `None` if its sandbox has no network.
    pub(crate) async fn open(
        broker: Option<&BrokerClient>,
        spec: &RunSpec,
    ) -> Result<Option<Self>, NetworkError> {
        if spec.sandbox.network == NetworkPolicy::Blocked {
            return Ok(None);
        }
        if spec.sandbox.substrate != Substrate::Native {
            return Err(NetworkError::OtherSubstrate);
        }
        let broker = broker.ok_or(NetworkError::NoBroker)?;
        let policy = spec.sandbox.network.clone();
        let limits = spec.sandbox.network_limits;
        let session = SessionSpec::new(policy, limits).with_credentials(&spec.brokered);
        let session = broker.open_session(session);
        let session = timeout(ANSWER_LIMIT, session).await.map_err(|_| NetworkError::Silent)??;
        Ok(Some(Self { session }))
    }

    /// What the program has to trust, if credentials are added to its requests.
    pub(crate) fn trust<'a>(&'a self, spec: &'a RunSpec) -> Option<CellTrust<'a>> {
        let authority = self.session.authority()?;
        Some(CellTrust { authority, brokered: &spec.brokered })
    }

    /// Attaches it to a cell that waits for its job.
    pub(crate) async fn attach_to(
        &mut self,
        cell: &Cell,
        spawner: &SpawnerClient,
    ) -> Result<(), NetworkError> {
        let socket = self.session.take_stack_socket().ok_or(SessionError::BrokerLost)?;
        let attached = spawner.attach_network(cell.id, self.session.ipv6(), socket).await;
        attached.map_err(NetworkError::Attach)
    }

    /// Ends the network. Returns what the run did over it.
    pub(crate) async fn finish(self) -> NetworkReport {
        let silent = |_| NetworkReport {
            lost: Some(NetworkError::Silent.to_string()),
            ..NetworkReport::default()
        };
        timeout(ANSWER_LIMIT, self.session.finish()).await.unwrap_or_else(silent)
    }
}
