//! `POST /execute`: one job, answered at its end or streamed line by line.
//!
//! The job belongs to the client's connection. If the client disconnects, the handler or the body
//! is dropped, which drops the job and stops the program.

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloche_engine::{
    DispatchError, JobRefusal, JobRequest, Refusal,
    sidecar::{JobEvent, JobResult, JobUpdate, SidecarJob},
};
use cloche_model::{ErrorCode, RunEnding, TraceId};
use futures::stream;
use serde_json::json;

use super::{SidecarAppState, body::JobBody, key::ServiceKey};
use crate::{body::HeldJson, error::ApiError, negotiation, reply};

/// Runs code once.
pub(super) async fn execute_job(
    State(state): State<SidecarAppState>,
    _: ServiceKey,
    headers: HeaderMap,
    body: Result<HeldJson<JobBody>, ApiError>,
) -> Result<Response, ApiError> {
    let HeldJson(body, memory) = body.inspect_err(|_| state.sidecar.note_refused("body"))?;
    let request: JobRequest =
        body.try_into().inspect_err(|_| state.sidecar.note_refused("invalid"))?;
    if request.limits.layer_store.is_some() {
        // The job is compared with the name of the store, which is read once and then known.
        state.sidecar.layer_store().await;
    }
    let job = state.sidecar.start_job(request).map_err(job_refusal_to_api_error)?;
    drop(memory);
    if negotiation::prefers_ndjson(&headers) {
        return Ok(stream_job(job));
    }
    let outcome = job.wait_outcome().await.map_err(dispatch_to_api_error)?;
    if outcome.ending == RunEnding::Cancelled {
        return Err(Refusal::new(ErrorCode::Unavailable, STOPPED).into());
    }
    Ok(reply::json_response(StatusCode::OK, JobResult::with_output(outcome)))
}

/// The message for a job that was stopped by another request.
const STOPPED: &str = "the job was stopped before it ended";

/// Stops a streamed job. Its stream then ends with the result.
pub(super) async fn cancel_job(
    State(state): State<SidecarAppState>,
    _: ServiceKey,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let id: TraceId = id.parse().map_err(|_| ApiError::not_found())?;
    if !state.sidecar.cancel_job(&id) {
        return Err(ApiError::not_found());
    }
    Ok((StatusCode::ACCEPTED, Json(json!({"id": id, "status": "cancelling"}))).into_response())
}

pub(super) fn job_refusal_to_api_error(refusal: JobRefusal) -> ApiError {
    let message = refusal.to_string();
    match refusal {
        JobRefusal::Invalid(invalid) => invalid.into(),
        JobRefusal::Beyond(_) => unprocessable_error(message),
        JobRefusal::OtherStore(_) => Refusal::new(ErrorCode::Conflict, message).into(),
        JobRefusal::Busy(_) | JobRefusal::Full => {
            Refusal::new(ErrorCode::RateLimited, message).into()
        }
        JobRefusal::Draining | JobRefusal::NoSandbox => {
            Refusal::new(ErrorCode::Unavailable, message).into()
        }
        JobRefusal::Internal => Refusal::new(ErrorCode::Internal, message).into(),
    }
}

fn unprocessable_error(message: String) -> ApiError {
    ApiError::Http(StatusCode::UNPROCESSABLE_ENTITY, "unprocessable", message)
}

/// Converts a dispatch error. The engine has logged the cause; the message says what to do.
fn dispatch_to_api_error(error: DispatchError) -> ApiError {
    match error {
        DispatchError::Impossible(why) | DispatchError::Refused(why) => unprocessable_error(why),
        DispatchError::Unavailable(_) => Refusal::new(ErrorCode::Unavailable, NO_SANDBOX).into(),
        DispatchError::Failed(_) => Refusal::new(ErrorCode::Internal, SANDBOX_FAILED).into(),
    }
}

const NO_SANDBOX: &str = "no sandbox can be started at present; try again in a moment";
const SANDBOX_FAILED: &str = "the sandbox failed to run the code";

/// Streams events, one JSON object per line.
fn stream_job(job: SidecarJob) -> Response {
    let first = JobEvent::Started { id: job.id.to_string() };
    let lines = stream::unfold(Some((Some(first), job)), next_event_line);
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (header::CACHE_CONTROL, "no-cache"),
        // Tells proxies not to buffer lines.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(lines)).into_response()
}

/// The rest of a stream: an event to send first, and the job; `None` after the last event.
type Rest = Option<(Option<JobEvent>, SidecarJob)>;

async fn next_event_line(rest: Rest) -> Option<(Result<Bytes, std::convert::Infallible>, Rest)> {
    let (event, mut job) = rest?;
    if let Some(event) = event {
        return Some((Ok(encode_line(&event)), Some((None, job))));
    }
    Some(match job.next().await {
        JobUpdate::Output(chunk) => {
            let data = STANDARD.encode(&chunk.bytes);
            let event = JobEvent::Output { stream: chunk.stream, data };
            (Ok(encode_line(&event)), Some((None, job)))
        }
        JobUpdate::Silence => (Ok(encode_line(&JobEvent::Keepalive)), Some((None, job))),
        JobUpdate::Over(result) => {
            let last = match *result {
                Ok(outcome) => JobEvent::Result(Box::new(JobResult::without_output(&outcome))),
                Err(error) => dispatch_to_error_event(error),
            };
            (Ok(encode_line(&last)), None)
        }
    })
}

fn dispatch_to_error_event(error: DispatchError) -> JobEvent {
    let (error, message) = match error {
        DispatchError::Impossible(why) | DispatchError::Refused(why) => ("unprocessable", why),
        DispatchError::Unavailable(_) => (ErrorCode::Unavailable.name(), NO_SANDBOX.to_owned()),
        DispatchError::Failed(_) => (ErrorCode::Internal.name(), SANDBOX_FAILED.to_owned()),
    };
    JobEvent::Error { error: error.to_owned(), message }
}

fn encode_line(event: &JobEvent) -> Bytes {
    // Writing strings and numbers to memory cannot fail.
    let mut bytes = serde_json::to_vec(event).unwrap_or_default();
    bytes.push(b'\n');
    bytes.into()
}
