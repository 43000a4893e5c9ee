//! What an operator can set of the doors, with the defaults.

use std::time::Duration;

use cloche_model::ByteSize;

/// Settings of the gateway.
#[derive(Clone, Copy, Debug)]
pub struct GatewayConfig {
    /// The largest body of JSON that is read. A megabyte of code, or of standard input, can need six
    /// in escapes; eight megabytes of files need eleven in base64.
    pub body: ByteSize,
    /// How long a client may take to send its headers, or the next request on an idle connection.
    pub header_timeout: Duration,
    /// How long a client may take to send a body of JSON, or the next piece of a file.
    pub body_timeout: Duration,
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
    /// How long connections may go on after the last execution when the server stops.
    pub linger: Duration,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            body: ByteSize::mib(32),
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            connections: 10_000,
            linger: Duration::from_secs(2),
        }
    }
}
