//! The HTTP API of the executor sidecar: `POST /execute`, `GET /healthz`, `GET /metrics`, and
//! cancellation.
//!
//! It is protected by one service key. It keeps nothing itself. The engine decides what a job may use.

mod body;
mod execute;
mod health;
mod key;

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::{FromRef, Request, State},
    middleware::{self, Next},
    response::Response,
    routing::{get, post},
};
use cloche_engine::{
    Dispatcher, MemoryConfig, MemoryPool,
    sidecar::{Sidecar, SidecarConfig},
};
use cloche_model::ByteSize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    GatewayConfig, ServerOpenError,
    accept_loop::accept_connections,
    error::ApiError,
    origin,
    router::{no_method, no_route},
};

/// The largest body. A megabyte each of code and input can take six in JSON escapes, and eight of
/// files eleven in base64.
const BODY: ByteSize = ByteSize::mib(24);
/// The limit on connections. A sidecar has few clients, and each connection may hold a body in
/// memory.
const CONNECTIONS: usize = 256;

/// The settings of a sidecar.
#[derive(Clone, Debug)]
pub struct SidecarOptions {
    /// The address to listen on, e.g. `127.0.0.1:9099`; port 0 selects a free port.
    pub listen: String,
    /// Key, limits and number of concurrent jobs.
    pub sidecar: SidecarConfig,
}

/// A sidecar that listens but does not serve yet.
pub struct SidecarServer {
    listener: TcpListener,
    address: SocketAddr,
    sidecar: Sidecar,
}

/// The state that every handler can use.
#[derive(Clone)]
struct SidecarAppState {
    sidecar: Sidecar,
    config: GatewayConfig,
    bodies: MemoryPool,
}

impl FromRef<SidecarAppState> for MemoryPool {
    fn from_ref(state: &SidecarAppState) -> Self {
        state.bodies.clone()
    }
}

impl FromRef<SidecarAppState> for GatewayConfig {
    fn from_ref(state: &SidecarAppState) -> Self {
        state.config.clone()
    }
}

impl SidecarServer {
    /// Listens on the address.
    ///
    /// # Errors
    /// When it cannot listen on the address.
    pub async fn open(
        options: SidecarOptions,
        dispatcher: Arc<dyn Dispatcher>,
    ) -> Result<Self, ServerOpenError> {
        let cannot = |source| ServerOpenError::Listen { address: options.listen.clone(), source };
        let listener = TcpListener::bind(&options.listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Self { listener, address, sidecar: Sidecar::new(dispatcher, options.sidecar) })
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` is cancelled and every job has ended.
    ///
    /// # Errors
    /// When the listener has no address.
    pub async fn run(self, shutdown: CancellationToken) -> io::Result<()> {
        let config =
            GatewayConfig { body: BODY, connections: CONNECTIONS, ..GatewayConfig::default() };
        // A sidecar has one key, so one holder may use the whole budget.
        let total = MemoryConfig::default().bodies;
        let bodies = MemoryPool::new(total, total);
        let state =
            SidecarAppState { sidecar: self.sidecar.clone(), config: config.clone(), bodies };
        let app = sidecar_routes(state);
        let ending = async { self.sidecar.shutdown().await };
        accept_connections(self.listener, app, config, shutdown, ending).await
    }
}

fn sidecar_routes(state: SidecarAppState) -> Router {
    Router::new()
        .route("/execute", post(execute::execute_job))
        .route("/execute/{id}/cancel", post(execute::cancel_job))
        .route("/healthz", get(health::report_health))
        .route("/metrics", get(health::report_metrics))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(state.clone(), refuse_web_pages))
        .with_state(state)
}

/// Refuses requests from web pages if there is no key. Otherwise any page that reaches the port
/// could run code.
async fn refuse_web_pages(
    State(state): State<SidecarAppState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if !state.sidecar.is_opened_by(None) {
        return Ok(next.run(request).await);
    }
    let (parts, body) = request.into_parts();
    origin::check_host(&parts)?;
    origin::check_origin(&parts.headers, &[])?;
    Ok(next.run(Request::from_parts(parts, body)).await)
}
