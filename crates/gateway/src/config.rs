//! The settings of the gateway, with their defaults.

use std::{sync::Arc, time::Duration};

use cloche_model::{ByteSize, Secret};

use crate::TlsIdentity;

/// Settings of the gateway.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// The largest JSON body. A megabyte of code, or of standard input, can take six in escapes;
    /// eight megabytes of files take eleven in base64.
    pub body: ByteSize,
    /// The timeout for the headers of a request, or for the next request on an idle connection.
    pub header_timeout: Duration,
    /// The timeout for a JSON body, or for the next piece of a file.
    pub body_timeout: Duration,
    /// The minimum rate of a body beyond that time, in bytes per second.
    pub body_rate: ByteSize,
    /// The timeout of a connection without a request.
    pub idle_timeout: Duration,
    /// The timeout for a client that reads nothing of a response that is ready.
    pub write_timeout: Duration,
    /// The limit on connections; further ones wait to be accepted.
    pub connections: usize,
    /// The limit on connections of one address, or of one IPv6 /64 network; further ones are
    /// refused.
    pub per_address: usize,
    /// The same for loopback addresses, where a reverse proxy may stand for many clients.
    pub per_loopback: usize,
    /// How long connections may continue after the last execution at shutdown.
    pub linger: Duration,
    /// The certificate and key of the port; without them it speaks plain HTTP.
    pub tls: Option<Arc<TlsIdentity>>,
    /// Settings of the MCP server.
    pub mcp: McpConfig,
    /// Who may read the metrics.
    pub metrics: MetricsAccess,
}

/// Who may read the metrics. The admin token always may.
#[derive(Clone, Debug)]
pub struct MetricsAccess {
    /// Whether the metrics without teams need no token.
    pub is_open: bool,
    /// A token for all metrics, besides the admin token.
    pub token: Option<Secret>,
}

impl Default for MetricsAccess {
    fn default() -> Self {
        Self { is_open: true, token: None }
    }
}

/// Settings of the MCP server.
#[derive(Clone, Debug)]
pub struct McpConfig {
    /// How much of each output stream a tool result shows. The model has to read it.
    pub output: ByteSize,
    /// How much of a file one call reads, and the largest image in a tool result.
    pub file: ByteSize,
    /// Origins of web pages that are allowed besides loopback ones, e.g. `https://a.example`.
    pub origins: Vec<String>,
    /// How long a call waits for a person's approval.
    pub approval_wait: Duration,
}

impl McpConfig {
    /// The limit on an output stream, as a number of bytes.
    pub(crate) fn output_bytes(&self) -> usize {
        usize::try_from(self.output.bytes()).unwrap_or(usize::MAX)
    }

    /// The limit on a file, as a number of bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file.bytes()
    }
}

impl Default for McpConfig {
    fn default() -> Self {
        Self {
            output: ByteSize::kib(32),
            file: ByteSize::mib(1),
            origins: Vec::new(),
            approval_wait: Duration::from_mins(5),
        }
    }
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            body: ByteSize::mib(32),
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            body_rate: ByteSize::kib(16),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            connections: 10_000,
            per_address: 512,
            per_loopback: 10_000,
            linger: Duration::from_secs(2),
            tls: None,
            mcp: McpConfig::default(),
            metrics: MetricsAccess::default(),
        }
    }
}
