//! Runs in: server (no capabilities).
//!
//! The HTTP clients of pulls: those of every other outgoing request, bound to addresses that were
//! checked.

use std::{error::Error, net::IpAddr, time::Duration};

use cloche_images::{ClientSource, ClientTarget};
use reqwest::Client;

use crate::outgoing_http;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);

pub(super) struct RegistryClients;

impl ClientSource for RegistryClients {
    fn make_client(&self, target: &ClientTarget) -> Result<Client, Box<dyn Error + Send + Sync>> {
        let authorities = target.authorities.as_deref();
        let builder = outgoing_http::builder_trusting(authorities.map(str::as_bytes))?;
        let builder = builder.connect_timeout(CONNECT);
        Ok(builder.resolve_to_addrs(&target.host, &target.addresses).build()?)
    }

    fn is_public(&self, address: IpAddr) -> bool {
        cloche_model::is_public_address(address)
    }
}
