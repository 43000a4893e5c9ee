//! `POST /v1/sandbox/execute`: one request body, three delivery modes.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use cloche_engine::{ExecutionEvents, StartedExecution};
use cloche_model::{DeliveryMode, ExecutionStatus, TraceId};

use super::execute_json::ExecuteJson;
use crate::{
    api_types::{Accepted, ErrorResponses, ExecuteBody, ExecuteResult, TimedOut},
    auth::ApiKeyAuth,
    error::{ApiError, TRACE_ID},
    negotiation, reply,
    router::AppState,
    server_timing::RequestArrival,
};

/// Execute code.
///
/// Inline by default. `Accept: application/x-ndjson` streams events. `Prefer: respond-async`
/// returns immediately and posts the result to a webhook.
#[utoipa::path(
    post,
    path = "/v1/sandbox/execute",
    tag = "execute",
    request_body = ExecuteBody,
    params(
        ("key" = Option<String>, Query, description = "With a session: the key to use, by id"),
        ("sandbox" = Option<String>, Query,
            description = "With a session and without a key: the sandbox to use, by id"),
        ("Prefer" = Option<String>, Header, description = "`respond-async` for webhook delivery")
    ),
    responses(
        (status = 200, description = "The program ran",
            content(
                (ExecuteResult = "application/json"),
                (String = "application/x-ndjson"),
            ),
            headers(
                ("x-trace-id" = String, description = "The trace id of the execution"),
                ("server-timing" = String,
                    description = "Milliseconds of each phase of an inline request")
            )),
        (status = 202,
            description = "The execution has started; the result is posted to the webhook",
            body = Accepted,
            headers(("x-trace-id" = String, description = "The trace id of the execution"))),
        (status = 504, description = "The time limit was reached", body = TimedOut,
            headers(("x-trace-id" = String, description = "The trace id of the execution"))),
        ErrorResponses
    ),
    security(("api_key" = []), ("session" = []))
)]
pub(crate) async fn execute(
    State(state): State<AppState>,
    arrival: RequestArrival,
    ApiKeyAuth(caller): ApiKeyAuth,
    headers: HeaderMap,
    ExecuteJson(body, memory): ExecuteJson,
) -> Result<Response, ApiError> {
    let delivery = requested_delivery(&headers);
    let started =
        state.engine.executions().start_execution(&caller, body.try_into()?, delivery).await?;
    // The head of these two promises a run, so it waits until an executor has taken it.
    let started = match delivery {
        DeliveryMode::Inline => started,
        DeliveryMode::Streaming | DeliveryMode::Webhook => started.wait_until_taken().await?,
    };
    // The program and its files have been passed to the executor by now.
    drop(memory);
    let trace_id = started.trace_id.clone();
    let response = match delivery {
        DeliveryMode::Inline => answer_inline(started, arrival).await?,
        DeliveryMode::Streaming => {
            reply::ndjson_response(trace_id.clone(), ExecutionEvents::Live(started.read_events()))
        }
        DeliveryMode::Webhook => {
            (StatusCode::ACCEPTED, Json(Accepted::running(&trace_id))).into_response()
        }
    };
    Ok(with_trace_id(response, &trace_id))
}

/// The delivery mode that the headers select. `Prefer` takes precedence over `Accept`.
fn requested_delivery(headers: &HeaderMap) -> DeliveryMode {
    if negotiation::prefers_async(headers) {
        DeliveryMode::Webhook
    } else if negotiation::prefers_ndjson(headers) {
        DeliveryMode::Streaming
    } else {
        DeliveryMode::Inline
    }
}

async fn answer_inline(
    started: StartedExecution,
    arrival: RequestArrival,
) -> Result<Response, ApiError> {
    let (execution, phases, answered) = started.wait_with_phases().await?;
    let result = ExecuteResult::from_execution(&execution);
    let mut response = match execution.status {
        ExecutionStatus::Timeout => reply::json_response(
            StatusCode::GATEWAY_TIMEOUT,
            TimedOut::new(result).to_json_pieces(),
        ),
        _ => reply::json_response(StatusCode::OK, result.to_json_pieces()),
    };
    arrival.describe(&phases, response.headers_mut());
    // Dropped when the response has been written.
    response.extensions_mut().insert(answered);
    Ok(response)
}

/// Adds the header with the trace id.
pub(crate) fn with_trace_id(mut response: Response, trace_id: &TraceId) -> Response {
    if let Ok(value) = HeaderValue::from_str(trace_id.as_str()) {
        response.headers_mut().insert(TRACE_ID, value);
    }
    response
}
