//! Runs in: server (no capabilities).
//!
//! One HTTPS request to a checked address: no redirects, bounded time, bounded answer.

use std::{net::SocketAddr, time::Duration};

use cloche_model::{Secret, error_chain};
use hmac::{Hmac, Mac};
use reqwest::{Body, Client, RequestBuilder, Response, header};
use rustls::ClientConfig;
use sha2::Sha256;
use url::{Host, Url};

use super::address_guard::AddressGuard;
use crate::{
    JsonPieces, WebhookConfig,
    json_pieces::MeasuredJson,
    outgoing_http::{self, OutgoingHttpError},
};

/// The most of an answer that is read; only its status matters.
const ANSWER: usize = 64 << 10;

/// What is sent.
pub(super) struct WebhookDelivery {
    pub(super) url: Url,
    pub(super) body: JsonPieces,
    pub(super) secret: Option<Secret>,
}

/// Sends deliveries.
pub(super) struct WebhookClient {
    tls: ClientConfig,
    timeout: Duration,
}

impl WebhookClient {
    pub(super) fn new(config: &WebhookConfig) -> Result<Self, OutgoingHttpError> {
        let tls = outgoing_http::tls_settings(config.extra_ca.as_deref())?;
        Ok(Self { tls, timeout: config.timeout })
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends it; the error is a sentence.
    pub(super) async fn send(
        &self,
        guard: &AddressGuard,
        delivery: WebhookDelivery,
    ) -> Result<(), String> {
        match tokio::time::timeout(self.timeout, self.post_delivery(guard, delivery)).await {
            Ok(result) => result,
            Err(_) => Err(format!("no answer within {} s", self.timeout.as_secs())),
        }
    }

    async fn post_delivery(
        &self,
        guard: &AddressGuard,
        delivery: WebhookDelivery,
    ) -> Result<(), String> {
        let addresses =
            guard.resolve_allowed(&delivery.url).await.map_err(|error| error.to_string())?;
        let client = self.pin_client(&delivery.url, &addresses).map_err(to_sentence)?;
        // The body is gone through once before it is sent: that takes a while if it is large.
        let prepared = tokio::task::spawn_blocking(move || build_request(&client, delivery)).await;
        let request = prepared.map_err(|error| error.to_string())??;
        let answer = request.send().await.map_err(to_sentence)?;
        let status = answer.status();
        read_answer(answer).await;
        if status.is_success() { Ok(()) } else { Err(format!("the receiver answered {status}")) }
    }

    /// A client that connects to these addresses and no other. The certificate must be for the host.
    /// Where the host is an address itself, the guard has allowed that address.
    fn pin_client(&self, url: &Url, addresses: &[SocketAddr]) -> reqwest::Result<Client> {
        let builder = outgoing_http::builder_with_tls(self.tls.clone());
        let builder = builder.http1_only().pool_max_idle_per_host(0);
        match url.host() {
            Some(Host::Domain(name)) => builder.resolve_to_addrs(name, addresses),
            _ => builder,
        }
        .build()
    }
}

/// The reasons of an error without the address, which may hold a secret.
fn to_sentence(error: reqwest::Error) -> String {
    error_chain(&error.without_url())
}

/// Reads the answer, so that a receiver that writes before it closes is not cut off.
async fn read_answer(mut answer: Response) {
    let mut left = ANSWER;
    while left > 0
        && let Ok(Some(chunk)) = answer.chunk().await
    {
        left = left.saturating_sub(chunk.len());
    }
}

fn build_request(client: &Client, delivery: WebhookDelivery) -> Result<RequestBuilder, String> {
    let WebhookDelivery { url, body, secret } = delivery;
    let (length, signature) = measure_and_sign(secret.as_ref(), body.clone())?;
    let mut request = client.post(url).header(header::CONTENT_TYPE, "application/json");
    if let Some(signature) = signature {
        request = request.header("x-baponi-signature", signature);
    }
    Ok(request.body(Body::wrap(MeasuredJson { pieces: body, left: length })))
}

/// The length of a body, and its signature if there is a secret: `sha256=` and the HMAC-SHA256 of the
/// raw body, in hex.
fn measure_and_sign(
    secret: Option<&Secret>,
    mut body: JsonPieces,
) -> Result<(u64, Option<String>), String> {
    let mac = secret.map(|secret| Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes()));
    let mut mac = mac.transpose().map_err(|error| error.to_string())?;
    let mut length = 0;
    while let Some(chunk) = body.next_chunk() {
        length += chunk.len() as u64;
        if let Some(mac) = &mut mac {
            mac.update(&chunk);
        }
    }
    let signed = |mac: Hmac<Sha256>| format!("sha256={}", hex::encode(mac.finalize().into_bytes()));
    Ok((length, mac.map(signed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_hmac_sha256_of_the_body() {
        // The digest of the same by `openssl dgst -sha256 -hmac Jefe`.
        let body = JsonPieces::from_value(&"what do ya want for nothing?", &[]);
        let (length, signature) = measure_and_sign(Some(&Secret::new("Jefe")), body).unwrap();
        assert_eq!(length, 30);
        assert_eq!(
            signature.unwrap(),
            "sha256=6e5c2a18febccaca669ac5f4415342714850e76ba86824a3371270e6dd69956f"
        );
    }
}
