//! What an operator can set of the doors, with the defaults.

use std::time::Duration;

use cloche_model::ByteSize;

/// Settings of the gateway.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// The largest body of JSON that is read. A megabyte of code, or of standard input, can need six
    /// in escapes; eight megabytes of files need eleven in base64.
    pub body: ByteSize,
    /// How long a client may take to send its headers, or the next request on an idle connection.
    pub header_timeout: Duration,
    /// How long a client may take to send a body of JSON, or the next piece of a file.
    pub body_timeout: Duration,
    /// The slowest that a body may come, in bytes a second, beyond that time.
    pub body_rate: ByteSize,
    /// How long a connection may be without a request.
    pub idle_timeout: Duration,
    /// How long a client may read nothing of an answer that is ready for it.
    pub write_timeout: Duration,
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
    /// Connections of one address at once, or of one /64 network of IPv6; more are refused.
    pub per_address: usize,
    /// The same for addresses of this machine, where a reverse proxy may stand for many clients.
    pub per_loopback: usize,
    /// How long connections may go on after the last execution when the server stops.
    pub linger: Duration,
    /// The door for agents.
    pub mcp: McpConfig,
}

/// Settings of the MCP server.
#[derive(Clone, Debug)]
pub struct McpConfig {
    /// The most of each output stream that a result shows; a model has to read it.
    pub output: ByteSize,
    /// The most of a file that is read at once, and the largest image that comes with a result.
    pub file: ByteSize,
    /// Origins of web pages that may ask besides those of this machine, e.g. `https://a.example`.
    pub origins: Vec<String>,
    /// How long a call waits for a person to approve it.
    pub approval_wait: Duration,
}

impl McpConfig {
    /// The most of an output stream, as a count of bytes.
    pub(crate) fn output_bytes(&self) -> usize {
        usize::try_from(self.output.bytes()).unwrap_or(usize::MAX)
    }

    /// The most of a file, likewise.
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
            mcp: McpConfig::default(),
        }
    }
}
