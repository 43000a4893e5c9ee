//! A JSON body, read with a limit on its size, its time and its depth; what is wrong with it is
//! said in our shape, with the field's name.

use axum::{
    body::{Body, Bytes},
    extract::{FromRef, FromRequest, Request},
    http::{HeaderMap, StatusCode, header},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use crate::{GatewayConfig, error::ApiError};

/// The deepest nesting that is read; nothing in any contract needs more than three.
const MAX_DEPTH: usize = 64;

/// A body of JSON.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T, S> FromRequest<S> for JsonBody<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
    GatewayConfig: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let config = GatewayConfig::from_ref(state);
        check_type(request.headers())?;
        let (parts, body) = request.into_parts();
        let bytes = bounded(&parts.headers, body, &config).await?;
        parse(&bytes).map(Self)
    }
}

/// The bytes of a body that is not too large and not too slow.
pub(crate) async fn bounded(
    headers: &HeaderMap,
    body: Body,
    config: &GatewayConfig,
) -> Result<Bytes, ApiError> {
    let limit = usize::try_from(config.body.bytes()).unwrap_or(usize::MAX);
    check_length(headers, limit)?;
    tokio::time::timeout(config.body_timeout, read(body, limit)).await.map_err(|_| {
        let message = "the body did not arrive in time".to_owned();
        ApiError::Http(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
    })?
}

fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
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

/// Refuses before reading what says itself that it is too large.
fn check_length(headers: &HeaderMap, limit: usize) -> Result<(), ApiError> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match length.and_then(|length| length.parse::<u64>().ok()) {
        Some(length) if length > limit as u64 => Err(too_large(limit)),
        _ => Ok(()),
    }
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("the body exceeds {limit} bytes");
    ApiError::Http(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message)
}

async fn read(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large(limit)),
        Err(_) => Err(invalid("the body could not be read to its end".to_owned())),
    }
}

/// The most characters of what is said about a body.
const MAX_REASON: usize = 1000;

/// What is wrong with JSON, without most of a value or a name that it quotes: those can be as long as a
/// body.
pub(crate) fn shorten_reason(mut reason: String) -> String {
    if let Some((at, _)) = reason.char_indices().nth(MAX_REASON) {
        reason.truncate(at);
        reason.push('…');
    }
    reason
}

fn invalid(message: String) -> ApiError {
    let message = shorten_reason(message);
    ApiError::Http(StatusCode::BAD_REQUEST, "validation_error", message)
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    if is_deep(bytes) {
        return Err(invalid(format!("the body is nested deeper than {MAX_DEPTH} levels")));
    }
    // Serde would also take a list for an object, field by field.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(invalid("the body must be a JSON object".to_owned()));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let reason = error.into_inner();
        if !reason.is_data() {
            return invalid(format!("the body is not JSON: {reason}"));
        }
        let place = if path == "." { "the body".to_owned() } else { path };
        invalid(format!("{place}: {reason}"))
    })?;
    json.end().map_err(|error| invalid(format!("the body: {error}")))?;
    Ok(value)
}

/// Counts brackets outside of strings. Fields that nobody knows are skipped without recursion, so
/// the parser's own limit does not see them.
pub(crate) fn is_deep(bytes: &[u8]) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_of_the_wrong_kind_is_not_said_in_full() {
        #[derive(Debug, serde::Deserialize)]
        struct Counted {
            #[expect(dead_code, reason = "it is never read")]
            count: u32,
        }
        let body = format!("{{\"count\": \"{}\"}}", "ä".repeat(100_000));
        let Err(ApiError::Http(_, _, message)) = parse::<Counted>(body.as_bytes()) else {
            panic!("a text is no number");
        };
        assert!(message.starts_with("count: invalid type: string"), "{message}");
        assert!(message.len() <= 2 * MAX_REASON + 3 && message.ends_with('…'));
    }

    #[test]
    fn brackets_in_strings_are_not_depth() {
        let text = format!("{{\"code\": \"{}\"}}", "[\\\"{".repeat(500));
        assert!(!is_deep(text.as_bytes()));
        assert!(is_deep("[".repeat(65).as_bytes()));
        assert!(!is_deep("[".repeat(64).as_bytes()));
    }
}
