//! Runs in: server (no capabilities).
//!
//! The wire format of networks: the limits of a sandbox, and what an execution did.

use cloche_model::{ByteSize, DeniedAttempt, NetworkLimits, NetworkReport};
use serde::{Deserialize, Serialize};
use utoipa::{
    ToSchema,
    openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, SchemaType, Type},
};

use super::number::whole;

/// The limits of the network of each execution. Absent ones have their defaults.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkLimitsBody {
    /// TCP connections at once.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 256, default = 256)]
    connections: Option<u16>,
    /// TCP connections at once that are not established yet.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 256, default = 64)]
    half_open: Option<u16>,
    /// New connections and UDP flows in each second, on average.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 1000, default = 50)]
    new_per_second: Option<u16>,
    /// New connections and UDP flows at once, after a pause.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 1000, default = 200)]
    new_burst: Option<u16>,
    /// UDP flows at once.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 256, default = 256)]
    udp_flows: Option<u16>,
    /// DNS queries in each second.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 1000, default = 50)]
    dns_per_second: Option<u16>,
    /// Bytes towards the program in each second; unlimited if absent.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1024)]
    bytes_in_per_second: Option<u64>,
    /// Bytes from the program in each second; unlimited if absent.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1024)]
    bytes_out_per_second: Option<u64>,
    /// Bytes of one execution, both ways together; unlimited if absent.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0)]
    bytes_per_run: Option<u64>,
}

impl From<NetworkLimitsBody> for NetworkLimits {
    fn from(body: NetworkLimitsBody) -> Self {
        let usual = Self::default();
        Self {
            connections: body.connections.unwrap_or(usual.connections),
            half_open: body.half_open.unwrap_or(usual.half_open),
            new_per_second: body.new_per_second.unwrap_or(usual.new_per_second),
            new_burst: body.new_burst.unwrap_or(usual.new_burst),
            udp_flows: body.udp_flows.unwrap_or(usual.udp_flows),
            dns_per_second: body.dns_per_second.unwrap_or(usual.dns_per_second),
            bytes_in_per_second: body.bytes_in_per_second,
            bytes_out_per_second: body.bytes_out_per_second,
            bytes_per_run: body.bytes_per_run.map(ByteSize),
        }
    }
}

/// The limits of the network of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NetworkLimitsRecord {
    connections: u16,
    half_open: u16,
    new_per_second: u16,
    new_burst: u16,
    udp_flows: u16,
    dns_per_second: u16,
    bytes_in_per_second: Option<u64>,
    bytes_out_per_second: Option<u64>,
    bytes_per_run: Option<u64>,
}

impl From<NetworkLimits> for NetworkLimitsRecord {
    fn from(limits: NetworkLimits) -> Self {
        Self {
            connections: limits.connections,
            half_open: limits.half_open,
            new_per_second: limits.new_per_second,
            new_burst: limits.new_burst,
            udp_flows: limits.udp_flows,
            dns_per_second: limits.dns_per_second,
            bytes_in_per_second: limits.bytes_in_per_second,
            bytes_out_per_second: limits.bytes_out_per_second,
            bytes_per_run: limits.bytes_per_run.map(ByteSize::bytes),
        }
    }
}

/// The rules of an allowlist: host names or networks, with ports.
pub(super) fn network_allow_schema() -> Schema {
    let rule = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(320))
        .examples(["pypi.example", "*.example.com:443", "203.0.113.0/24:5432"]);
    let mut array = ArrayBuilder::new().items(rule).max_items(Some(256)).build();
    array.schema_type = SchemaType::from_iter([Type::Array, Type::Null]);
    Schema::Array(array)
}

/// What an execution did over its network.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NetworkRecord {
    /// Bytes that the program received.
    bytes_in: u64,
    /// Bytes that it sent.
    bytes_out: u64,
    /// TCP connections that were established.
    connections: u64,
    /// Destinations that were denied, each once; at most 64.
    denied: Vec<DeniedRecord>,
    /// Denied attempts to destinations beyond those that are listed.
    denied_more: u64,
    /// Why the network ended before the program, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<String>,
}

/// A destination that was denied.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeniedRecord {
    /// The name if the program asked by name, otherwise the address.
    host: String,
    port: u16,
    /// `tcp`, `udp`, `dns`, `icmp`, `tls` or `http`.
    protocol: &'static str,
    /// `not_allowed`, `address_blocked`, `port_blocked`, `name_mismatch`, `name_hidden`,
    /// `unknown_protocol`, `protocol_blocked`, `limit_reached` or `scan_detected`.
    reason: &'static str,
    /// How often it was tried.
    count: u64,
}

impl From<DeniedAttempt> for DeniedRecord {
    fn from(attempt: DeniedAttempt) -> Self {
        Self {
            host: attempt.host,
            port: attempt.port,
            protocol: attempt.protocol.name(),
            reason: attempt.reason.name(),
            count: attempt.count,
        }
    }
}

impl From<NetworkReport> for NetworkRecord {
    fn from(report: NetworkReport) -> Self {
        Self {
            bytes_in: report.bytes_in,
            bytes_out: report.bytes_out,
            connections: report.connections,
            denied: report.denied.into_iter().map(DeniedRecord::from).collect(),
            denied_more: report.denied_more,
            lost: report.lost,
        }
    }
}
