//! JSON request bodies, read with limits on size, time, depth and number of values, after memory is
//! reserved for them. Errors have our format and name the field.

use axum::{
    body::{Body, Bytes},
    extract::{FromRef, FromRequest, Request},
    http::{Extensions, HeaderMap, StatusCode, header, request::Parts},
};
use cloche_engine::{MEMORY_WAIT, MemoryPool, refuse_memory};
use cloche_model::{MemoryReservation, MemoryShortage};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use crate::{GatewayConfig, audit, error::ApiError, pace::BodyPace};

/// The deepest nesting accepted; no contract needs more than three levels.
const MAX_DEPTH: usize = 64;
/// The limit on values in a body. A list of empty values takes far more memory than its text.
const MAX_VALUES: usize = 250_000;
/// A body is in memory twice: as received and as parsed.
const COPIES: u64 = 2;
/// Memory for a body of unknown length is reserved in steps of this size.
const STEP: usize = 1 << 20;

/// A JSON body.
pub(crate) struct JsonBody<T>(pub(crate) T);

/// A JSON body with its memory reservation, held for as long as the request takes.
pub(crate) struct HeldJson<T>(pub(crate) T, pub(crate) MemoryReservation);

/// The holder whose share of the memory a body uses. Set by the extractors that know the caller.
#[derive(Clone)]
pub(crate) struct BodyOwner(pub(crate) String);

impl<T, S> FromRequest<S> for HeldJson<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
    GatewayConfig: FromRef<S>,
    MemoryPool: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let config = GatewayConfig::from_ref(state);
        check_content_type(request.headers())?;
        let (parts, body) = request.into_parts();
        let pool = MemoryPool::from_ref(state);
        let (bytes, memory) = read_within_limits(&parts, body, &config, &pool).await?;
        let value = parse_json(&bytes)?;
        audit::note_fields(&parts.extensions, &bytes);
        Ok(Self(value, memory))
    }
}

impl<T, S> FromRequest<S> for JsonBody<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
    GatewayConfig: FromRef<S>,
    MemoryPool: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let held = <HeldJson<T> as FromRequest<S>>::from_request(request, state);
        let HeldJson(value, _) = held.await?;
        Ok(Self(value))
    }
}

/// Reads a body within the limits on size and pace. Returns its bytes and their reservation.
pub(crate) async fn read_within_limits(
    parts: &Parts,
    body: Body,
    config: &GatewayConfig,
    pool: &MemoryPool,
) -> Result<(Bytes, MemoryReservation), ApiError> {
    let limit = usize::try_from(config.body.bytes()).unwrap_or(usize::MAX);
    let length = check_length(&parts.headers, limit)?;
    // Reserved before the first byte is read, so that the client keeps what does not fit.
    let first = COPIES * length.unwrap_or(STEP) as u64;
    let memory = pool.reserve(body_owner(&parts.extensions), first, MEMORY_WAIT).await;
    let memory = memory.map_err(memory_shortage_error)?;
    let pace = BodyPace::new(config.body_timeout, config.body_rate);
    let mut bytes = Vec::with_capacity(length.unwrap_or_default());
    read_frames(body, limit, pace, |piece: &Bytes| {
        let wanted = bytes.len() + piece.len();
        if length.is_none() && COPIES * wanted as u64 > memory.bytes() {
            memory.grow(COPIES * STEP.max(piece.len()) as u64).map_err(memory_shortage_error)?;
        }
        bytes.extend_from_slice(piece);
        Ok(())
    })
    .await?;
    Ok((bytes.into(), memory))
}

fn body_owner(extensions: &Extensions) -> &str {
    extensions.get::<BodyOwner>().map_or("", |BodyOwner(owner)| owner)
}

fn memory_shortage_error(shortage: MemoryShortage) -> ApiError {
    refuse_memory(shortage, "read the body").into()
}

pub(crate) fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or("").trim();
    let (top, sub) = kind.split_once('/').unwrap_or_default();
    let sub = sub.to_ascii_lowercase();
    if top.eq_ignore_ascii_case("application") && (sub == "json" || sub.ends_with("+json")) {
        return Ok(());
    }
    let message = "send the body as: Content-Type: application/json".to_owned();
    Err(ApiError::Http(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}

/// The length from the headers. A body that is declared too large is refused before it is read.
fn check_length(headers: &HeaderMap, limit: usize) -> Result<Option<usize>, ApiError> {
    let Some(length) = declared_length(headers) else { return Ok(None) };
    let fits = usize::try_from(length).ok().filter(|length| *length <= limit);
    fits.map(Some).ok_or_else(|| too_large_error(limit as u64))
}

/// The length of the body in the headers.
pub(crate) fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

pub(crate) fn too_large_error(limit: u64) -> ApiError {
    let message = format!("the body exceeds {limit} bytes");
    ApiError::Http(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message)
}

async fn read_frames(
    mut body: Body,
    limit: usize,
    mut pace: BodyPace,
    mut keep: impl FnMut(&Bytes) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let mut length = 0;
    loop {
        let frame = pace.wait_for(body.frame()).await.map_err(|_| too_slow_error())?;
        let Some(frame) = frame else { return Ok(()) };
        let unreadable = |_| invalid_body_error("the body could not be read to its end".to_owned());
        let Ok(piece) = frame.map_err(unreadable)?.into_data() else { continue };
        length += piece.len();
        if length > limit {
            return Err(too_large_error(limit as u64));
        }
        pace.count_received(piece.len());
        keep(&piece)?;
    }
}

fn too_slow_error() -> ApiError {
    let message = "the body did not arrive in time".to_owned();
    ApiError::Http(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
}

/// The limit on characters of an error message about a body.
const MAX_REASON: usize = 1000;

/// Truncates an error message about JSON. It can quote a value or a name as long as the body.
pub(crate) fn shorten_reason(mut reason: String) -> String {
    if let Some((at, _)) = reason.char_indices().nth(MAX_REASON) {
        reason.truncate(at);
        reason.push('…');
    }
    reason
}

fn invalid_body_error(message: String) -> ApiError {
    let message = shorten_reason(message);
    ApiError::Http(StatusCode::BAD_REQUEST, "validation_error", message)
}

pub(crate) fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    match measure_shape(bytes) {
        BodyShape::Fine => {}
        BodyShape::Deep => {
            return Err(invalid_body_error(format!(
                "the body is nested deeper than {MAX_DEPTH} levels"
            )));
        }
        BodyShape::Crowded => {
            return Err(invalid_body_error(format!("the body has more than {MAX_VALUES} values")));
        }
    }
    // Serde would also accept a list for an object, field by field.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(invalid_body_error("the body must be a JSON object".to_owned()));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let reason = error.into_inner();
        if !reason.is_data() {
            return invalid_body_error(format!("the body is not JSON: {reason}"));
        }
        let field = if path == "." { "the body".to_owned() } else { path };
        invalid_body_error(format!("{field}: {reason}"))
    })?;
    json.end().map_err(|error| invalid_body_error(format!("the body: {error}")))?;
    Ok(value)
}

/// Whether a body may be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyShape {
    /// It is within the limits.
    Fine,
    /// It is nested too deeply.
    Deep,
    /// It has too many values.
    Crowded,
}

/// Counts brackets and commas outside of strings. Serde skips unknown fields without recursion, so
/// its own depth limit does not apply to them.
pub(crate) fn measure_shape(bytes: &[u8]) -> BodyShape {
    let (mut depth, mut values, mut in_string, mut escaped) = (0_usize, 0_usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                values += 1;
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
        if depth > MAX_DEPTH {
            return BodyShape::Deep;
        }
    }
    if values > MAX_VALUES { BodyShape::Crowded } else { BodyShape::Fine }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_long_value_of_the_wrong_type_is_truncated() {
        #[derive(Debug, serde::Deserialize)]
        struct Counted {
            #[expect(dead_code, reason = "it is never read")]
            count: u32,
        }
        let body = format!("{{\"count\": \"{}\"}}", "ä".repeat(100_000));
        let Err(ApiError::Http(_, _, message)) = parse_json::<Counted>(body.as_bytes()) else {
            panic!("a string was accepted as a number");
        };
        assert!(message.starts_with("count: invalid type: string"), "{message}");
        assert!(message.len() <= 2 * MAX_REASON + 3 && message.ends_with('…'));
    }

    #[test]
    fn brackets_in_strings_are_not_depth() {
        let text = format!("{{\"code\": \"{}\"}}", "[\\\"{,".repeat(500_000));
        assert_eq!(measure_shape(text.as_bytes()), BodyShape::Fine);
        assert_eq!(measure_shape("[".repeat(65).as_bytes()), BodyShape::Deep);
        assert_eq!(measure_shape("[".repeat(64).as_bytes()), BodyShape::Fine);
    }

    #[test]
    fn lists_with_too_many_values_are_refused() {
        let list = |count| format!("[{}0]", "0,".repeat(count));
        assert_eq!(measure_shape(list(MAX_VALUES).as_bytes()), BodyShape::Crowded);
        assert_eq!(measure_shape(list(MAX_VALUES - 1).as_bytes()), BodyShape::Fine);
    }
}
