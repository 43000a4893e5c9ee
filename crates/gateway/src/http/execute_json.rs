//! Runs in: server (no capabilities).
//!
//! The JSON body of the execute endpoint. One that exceeds the limit on bodies is looked through
//! without being held: if its code is too long, the client is to learn that and not only the size
//! of its body.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{FromRef, FromRequest, Request},
    http::{StatusCode, request::Parts},
};
use cloche_engine::MemoryPool;
use cloche_model::{
    Invalid, MemoryReservation,
    request::{CODE_LENGTH, MAX_CODE_BYTES},
};
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::{io::AsyncReadExt, time::timeout};

use super::text_meter::TextMeter;
use crate::{
    GatewayConfig,
    api_types::ExecuteBody,
    body::{
        HeldJson, check_content_type, declared_length, parse_json, read_within_limits,
        too_large_error,
    },
    error::ApiError,
    streamed_body::StreamedBody,
};

/// How long a refused body is looked through, and how long its next piece may take.
const LONGEST_LOOK: Duration = Duration::from_secs(10);
const PIECE_PATIENCE: Duration = Duration::from_secs(1);
const PIECE: usize = 16 << 10;

/// A body of the execute endpoint, with its memory reservation.
pub(crate) struct ExecuteJson(pub(crate) ExecuteBody, pub(crate) MemoryReservation);

impl<S> FromRequest<S> for ExecuteJson
where
    S: Send + Sync,
    GatewayConfig: FromRef<S>,
    MemoryPool: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let config = GatewayConfig::from_ref(state);
        check_content_type(request.headers())?;
        let limit = config.body.bytes();
        match declared_length(request.headers()) {
            Some(length) if length > limit => {
                Err(refuse_long_body(request.into_body(), &config).await)
            }
            Some(_) => {
                let HeldJson(body, memory) = HeldJson::from_request(request, state).await?;
                Ok(Self(body, memory))
            }
            None => {
                let (parts, body) = request.into_parts();
                read_unmeasured(&parts, body, &config, &MemoryPool::from_ref(state)).await
            }
        }
    }
}

/// The refusal of a body whose declared length exceeds the limit. What is read of it is discarded.
async fn refuse_long_body(body: Body, config: &GatewayConfig) -> ApiError {
    let (mut body, _) = StreamedBody::new(body, config);
    let mut meter = TextMeter::new("code", MAX_CODE_BYTES);
    let look = async {
        let (mut piece, mut left) = (vec![0; PIECE], config.body.bytes());
        while left > 0 && !meter.exceeds_limit() {
            match timeout(PIECE_PATIENCE, body.read(&mut piece)).await {
                Ok(Ok(length @ 1..)) => {
                    meter.push(&piece[..length]);
                    left = left.saturating_sub(length as u64);
                }
                _ => return,
            }
        }
    };
    // A body that does not arrive in time is refused for its length alone.
    let _ = timeout(LONGEST_LOOK, look).await;
    refuse_oversized(&meter, config)
}

/// Reads a body of unknown length.
async fn read_unmeasured(
    parts: &Parts,
    body: Body,
    config: &GatewayConfig,
    pool: &MemoryPool,
) -> Result<ExecuteJson, ApiError> {
    let meter = Arc::new(Mutex::new(TextMeter::new("code", MAX_CODE_BYTES)));
    let metered = Arc::clone(&meter);
    let pieces = body.into_data_stream().inspect(move |piece| {
        if let Ok(piece) = piece {
            let piece: &Bytes = piece;
            metered.lock().push(piece);
        }
    });
    match read_within_limits(parts, Body::from_stream(pieces), config, pool).await {
        Ok((bytes, memory)) => Ok(ExecuteJson(parse_json(&bytes)?, memory)),
        Err(ApiError::Http(StatusCode::PAYLOAD_TOO_LARGE, ..)) => {
            Err(refuse_oversized(&meter.lock(), config))
        }
        Err(error) => Err(error),
    }
}

fn refuse_oversized(meter: &TextMeter, config: &GatewayConfig) -> ApiError {
    match meter.exceeds_limit() {
        true => Invalid::new(CODE_LENGTH).into(),
        false => too_large_error(config.body.bytes()),
    }
}
