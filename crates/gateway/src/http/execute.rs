//! `POST /v1/sandbox/execute`: one request body, three ways to get the result.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use cloche_engine::{Output, Started};
use cloche_model::{Delivery, Status, TraceId};

use crate::{
    auth::Key,
    body::HeldJson,
    error::{ApiError, TRACE_ID},
    reply,
    router::Doors,
    wire::{Accepted, Errors, ExecuteBody, ExecuteResult, TimedOut},
};

/// Run code.
///
/// Inline by default; `Accept: application/x-ndjson` streams events, `Prefer: respond-async`
/// answers at once and posts the result to a webhook.
#[utoipa::path(
    post,
    path = "/v1/sandbox/execute",
    tag = "execute",
    request_body = ExecuteBody,
    params(
        ("Prefer" = Option<String>, Header, description = "`respond-async` for webhook delivery")
    ),
    responses(
        (status = 200, description = "It ran",
            content(
                (ExecuteResult = "application/json"),
                (String = "application/x-ndjson"),
            ),
            headers(("x-trace-id" = String, description = "The execution"))),
        (status = 202, description = "It runs; the result goes to the webhook", body = Accepted,
            headers(("x-trace-id" = String, description = "The execution"))),
        (status = 504, description = "The time limit was reached", body = TimedOut,
            headers(("x-trace-id" = String, description = "The execution"))),
        Errors
    ),
    security(("api_key" = []))
)]
pub(crate) async fn execute(
    State(doors): State<Doors>,
    Key(caller): Key,
    headers: HeaderMap,
    HeldJson(body, memory): HeldJson<ExecuteBody>,
) -> Result<Response, ApiError> {
    let delivery = delivery(&headers);
    let started = doors.engine.execute(&caller, body.try_into()?, delivery).await?;
    // By now the program and its files are on their way to a cell.
    drop(memory);
    let trace_id = started.trace_id.clone();
    let response = match delivery {
        Delivery::Inline => inline(started).await?,
        Delivery::Streaming => reply::events(trace_id.clone(), Output::Live(started.events())),
        Delivery::Webhook => {
            (StatusCode::ACCEPTED, Json(Accepted::running(&trace_id))).into_response()
        }
    };
    Ok(traced(response, &trace_id))
}

/// What the headers ask for. `Prefer` says more than `Accept`, so it wins.
fn delivery(headers: &HeaderMap) -> Delivery {
    let has = |name, wanted: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split([',', ';'])).any(|part| part.trim() == wanted)
    };
    if has(header::HeaderName::from_static("prefer"), "respond-async") {
        Delivery::Webhook
    } else if has(header::ACCEPT, "application/x-ndjson") {
        Delivery::Streaming
    } else {
        Delivery::Inline
    }
}

async fn inline(started: Started) -> Result<Response, ApiError> {
    let execution = started.over().await?;
    let result = ExecuteResult::of(&execution);
    Ok(match execution.status {
        Status::Timeout => reply::json(StatusCode::GATEWAY_TIMEOUT, TimedOut::new(result).pieces()),
        _ => reply::json(StatusCode::OK, result.pieces()),
    })
}

/// The answer with the header that names the execution.
pub(crate) fn traced(mut response: Response, trace_id: &TraceId) -> Response {
    if let Ok(value) = HeaderValue::from_str(trace_id.as_str()) {
        response.headers_mut().insert(TRACE_ID, value);
    }
    response
}
