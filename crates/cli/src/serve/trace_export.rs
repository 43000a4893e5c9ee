//! Runs in: server (no capabilities).
//!
//! Export of traces by OTLP over HTTP with protobuf, set up by the standard `OTEL_…` variables. It
//! uses the server's HTTP client. It does not know what spans mean.

use std::{path::PathBuf, time::Duration};

use cloche_engine::{enable_trace_export, outgoing_http};
use opentelemetry::{KeyValue, global};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tokio::runtime::Handle;

use super::Failure;

/// The limit of one export if `OTEL_EXPORTER_OTLP_TIMEOUT` is not set.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A running export.
pub(super) struct TraceExport(SdkTracerProvider);

/// The value of a variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A variable for traces, or the one for all signals.
fn otlp_variable(name: &str) -> Option<String> {
    let own = variable(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"));
    own.or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{name}")))
}

/// The file with authorities that the collector's certificate is checked with.
pub(super) fn collector_ca() -> Option<PathBuf> {
    otlp_variable("CERTIFICATE").map(PathBuf::from)
}

fn is_wanted() -> bool {
    let is_disabled =
        variable("OTEL_SDK_DISABLED").is_some_and(|it| it.eq_ignore_ascii_case("true"));
    let exporter = variable("OTEL_TRACES_EXPORTER");
    let is_other = exporter.is_some_and(|name| name != "otlp");
    otlp_variable("ENDPOINT").is_some() && !is_disabled && !is_other
}

impl TraceExport {
    /// Starts the export if the environment names a collector.
    pub(super) fn start() -> Result<Option<Self>, Failure> {
        if !is_wanted() {
            return Ok(None);
        }
        if let Some(protocol) = otlp_variable("PROTOCOL").filter(|it| it != "http/protobuf") {
            return Err(format!(
                "OTEL_EXPORTER_OTLP_PROTOCOL is {protocol:?}, but only \"http/protobuf\" is supported"
            )
            .into());
        }
        let timeout = otlp_variable("TIMEOUT").and_then(|millis| millis.parse().ok());
        let timeout = timeout.map_or(TIMEOUT, Duration::from_millis);
        let http = outgoing_http::client_builder_trusting(collector_ca().as_deref())?;
        let client =
            CollectorClient { http: http.timeout(timeout).build()?, runtime: Handle::current() };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(timeout)
            .with_http_client(client)
            .build()?;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(describe_server())
            .build();
        global::set_tracer_provider(provider.clone());
        global::set_text_map_propagator(TraceContextPropagator::new());
        enable_trace_export();
        let endpoint = otlp_variable("ENDPOINT").map(|it| without_secrets(&it));
        tracing::info!(endpoint, "traces are exported");
        Ok(Some(Self(provider)))
    }

    /// Sends what is left.
    pub(super) async fn finish(self) {
        // The exporter blocks its thread while the runtime sends.
        let done = tokio::task::spawn_blocking(move || self.0.shutdown()).await;
        if !matches!(done, Ok(Ok(()))) {
            tracing::warn!(?done, "the last traces were not exported");
        }
    }
}

/// An address for the log: a login or a query may be in it.
fn without_secrets(address: &str) -> String {
    let Ok(mut url) = reqwest::Url::parse(address) else { return String::new() };
    // Neither fails for an address with a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.into()
}

fn describe_server() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let builder = Resource::builder().with_attribute(version);
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let is_named = variable("OTEL_SERVICE_NAME").is_some() || attributes.contains("service.name=");
    match is_named {
        true => builder.build(),
        false => builder.with_service_name("cloche").build(),
    }
}

/// The server's HTTP client, called from the thread of the exporter.
#[derive(Debug)]
struct CollectorClient {
    http: reqwest::Client,
    runtime: Handle,
}

#[async_trait::async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let http = self.http.clone();
        let request = reqwest::Request::try_from(request)?;
        let sent = self.runtime.spawn(async move {
            let answer = http.execute(request).await.map_err(reqwest::Error::without_url)?;
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = answer.status();
            *response.headers_mut() = answer.headers().clone();
            *response.body_mut() = answer.bytes().await?;
            Ok::<_, reqwest::Error>(response)
        });
        Ok(sent.await??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logged_address_of_a_collector_has_no_login() {
        let shown = without_secrets("https://user:word@collector:4318/v1?token=t");
        assert_eq!(shown, "https://collector:4318/v1");
    }
}
