//! Runs in: server (no capabilities).
//!
//! One request from its first byte to its last: who sent it, which execution it started, and where
//! the time went. It becomes one log line, and spans if the operator exports traces. It knows no
//! HTTP and no exporter: the binary installs a tracer, or none.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use cloche_model::{ExecutionStatus, KeyId, TeamId, TraceId};
use opentelemetry::{
    Context, KeyValue, global,
    propagation::Extractor,
    trace::{Span, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer},
};
use parking_lot::Mutex;

/// The name of the instrumentation in exported spans.
const TRACER: &str = "cloche";

/// Whether a tracer is installed. Without one, no span is built.
static IS_EXPORTED: AtomicBool = AtomicBool::new(false);

tokio::task_local! {
    static CURRENT: RequestTrace;
}

/// From now on spans are built for the tracer provider that is installed.
pub fn enable_trace_export() {
    IS_EXPORTED.store(true, Ordering::Relaxed);
}

/// A part of the time of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracePhase {
    /// Checks of the request, its slot, and its turn in the queue of the host.
    Admission,
    /// The row of its beginning, and the lease of its thread.
    Ledger,
    /// A cell, its job and its home.
    Pool,
    /// The program.
    Run,
    /// Its files and the row of its end.
    Commit,
}

impl TracePhase {
    /// The name in spans.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Ledger => "ledger",
            Self::Pool => "pool",
            Self::Run => "run",
            Self::Commit => "commit",
        }
    }
}

/// Who sent a request.
struct TraceCaller {
    /// Absent for the admin token.
    team: Option<TeamId>,
    key: Option<KeyId>,
}

/// The trace of one request, or of an execution that no request waits for. Clones are the same.
#[derive(Clone)]
pub struct RequestTrace(Arc<TraceState>);

struct TraceState {
    began: Instant,
    caller: OnceLock<TraceCaller>,
    execution: OnceLock<TraceId>,
    /// The sum of each phase.
    phases: Mutex<[Option<Duration>; 5]>,
    /// Whether the line was written.
    is_over: AtomicBool,
    /// The span that phases belong to, if traces are exported.
    span: Option<Context>,
    /// Whether this is an execution without a request.
    is_detached: bool,
}

/// What a request was, in words for its line and its span.
#[derive(Clone, Copy, Debug)]
pub struct RequestLine<'a> {
    /// The method.
    pub method: &'a str,
    /// The route, with names instead of values: a path may hold a signature.
    pub route: &'a str,
    /// The status of the response. Absent if the client left before it.
    pub status: Option<u16>,
    /// Whether this is a probe, which is logged at the level `debug`.
    pub is_probe: bool,
}

impl RequestTrace {
    /// A request that begins now. Its span continues the trace that the caller names.
    #[must_use]
    pub fn begin(caller: &dyn Extractor) -> Self {
        Self::new(|| global::get_text_map_propagator(|known| known.extract(caller)), false)
    }

    /// The request that this task serves, else a trace for an execution alone.
    #[must_use]
    pub(crate) fn current_or_detached() -> Self {
        CURRENT.try_with(Clone::clone).unwrap_or_else(|_| Self::new(Context::new, true))
    }

    fn new(parent: impl FnOnce() -> Context, is_detached: bool) -> Self {
        let span = IS_EXPORTED.load(Ordering::Relaxed).then(|| {
            let parent = parent();
            let (name, kind) = match is_detached {
                true => ("execution", SpanKind::Internal),
                false => ("request", SpanKind::Server),
            };
            let builder = SpanBuilder::from_name(name).with_kind(kind);
            let span = global::tracer(TRACER).build_with_context(builder, &parent);
            parent.with_span(span)
        });
        Self(Arc::new(TraceState {
            began: Instant::now(),
            caller: OnceLock::new(),
            execution: OnceLock::new(),
            phases: Mutex::default(),
            is_over: AtomicBool::new(false),
            span,
            is_detached,
        }))
    }

    /// Serves the request: executions that `work` starts belong to it.
    pub async fn serve<T>(self, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self, work).await
    }

    /// Names the team and the key; neither for the admin token.
    pub fn set_caller(&self, team: Option<&TeamId>, key: Option<&KeyId>) {
        // A request has one caller; a second name would be the same.
        let _ = self.0.caller.set(TraceCaller { team: team.cloned(), key: key.cloned() });
    }

    /// Names the execution that the request started. The first one counts.
    pub(crate) fn set_execution(&self, team: &TeamId, key: &KeyId, trace_id: &TraceId) {
        self.set_caller(Some(team), Some(key));
        let _ = self.0.execution.set(trace_id.clone());
    }

    /// Adds a phase that began at `began` and took so long.
    pub(crate) fn note_phase(&self, phase: TracePhase, began: Instant, took: Duration) {
        let sum = &mut self.0.phases.lock()[phase as usize];
        *sum = Some(sum.unwrap_or_default() + took);
        let Some(parent) = &self.0.span else { return };
        let start = SystemTime::now() - began.elapsed();
        let builder = SpanBuilder::from_name(phase.name()).with_start_time(start);
        let mut span = global::tracer(TRACER).build_with_context(builder, parent);
        span.end_with_timestamp(start + took);
    }

    /// Adds a phase that began at `began` and ends now.
    pub(crate) fn end_phase(&self, phase: TracePhase, began: Instant) {
        self.note_phase(phase, began, began.elapsed());
    }

    /// The end of a request: writes its line and ends its span, once.
    pub fn finish_request(&self, line: &RequestLine<'_>) {
        if self.0.is_over.swap(true, Ordering::Relaxed) {
            return;
        }
        self.log_request(line);
        let Some(context) = &self.0.span else { return };
        let span = context.span();
        span.update_name(format!("{} {}", line.method, line.route));
        span.set_attribute(KeyValue::new("http.request.method", line.method.to_owned()));
        span.set_attribute(KeyValue::new("http.route", line.route.to_owned()));
        if let Some(status) = line.status {
            span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
            if status >= 500 {
                span.set_status(Status::error(""));
            }
        }
        self.end_span(context);
    }

    /// The end of an execution: a line of its own if its request is over, or never was.
    pub(crate) fn finish_execution(&self, status: ExecutionStatus) {
        if let Some(context) = &self.0.span {
            context.span().set_attribute(KeyValue::new("cloche.execution.status", status.name()));
            if self.0.is_detached {
                self.end_span(context);
            }
        }
        if self.0.is_detached || self.0.is_over.load(Ordering::Relaxed) {
            self.log_execution(status);
        }
    }

    fn end_span(&self, context: &Context) {
        let span = context.span();
        let (team, key) = self.caller_names();
        for (name, value) in [
            ("cloche.trace_id", self.0.execution.get().map(|id| id.as_str())),
            ("cloche.team", team),
            ("cloche.key", key),
        ] {
            if let Some(value) = value {
                span.set_attribute(KeyValue::new(name, value.to_owned()));
            }
        }
        span.end();
    }

    /// The ids of the team and the key, never a secret.
    fn caller_names(&self) -> (Option<&str>, Option<&str>) {
        let Some(caller) = self.0.caller.get() else { return (None, None) };
        let team = caller.team.as_ref().map(TeamId::as_str);
        (team, Some(caller.key.as_ref().map_or("admin", KeyId::as_str)))
    }

    /// The id of the exported trace.
    fn exported_id(&self) -> Option<String> {
        let context = self.0.span.as_ref()?.span().span_context().clone();
        context.is_valid().then(|| context.trace_id().to_string())
    }
}

/// Milliseconds with three digits.
fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// A line with the fields that requests and executions share.
macro_rules! log_line {
    ($level:ident, $trace:expr, $message:literal, $($field:tt)*) => {{
        let state = &$trace.0;
        let (team, key) = $trace.caller_names();
        let trace_id = state.execution.get().map(TraceId::as_str);
        let exported = $trace.exported_id();
        let [admission, ledger, pool, run, commit] = state.phases.lock().map(|it| it.map(millis));
        tracing::$level!(
            target: "cloche::requests",
            $($field)*
            trace_id, team, key,
            ms = millis(state.began.elapsed()),
            admission_ms = admission, ledger_ms = ledger, pool_ms = pool, run_ms = run,
            commit_ms = commit, otel_trace_id = exported,
            $message
        );
    }};
}

impl RequestTrace {
    fn log_request(&self, line: &RequestLine<'_>) {
        let RequestLine { method, route, status, is_probe } = *line;
        if is_probe {
            log_line!(debug, self, "request", method, route, status,);
        } else {
            log_line!(info, self, "request", method, route, status,);
        }
    }

    fn log_execution(&self, status: ExecutionStatus) {
        log_line!(info, self, "execution", status = status.name(),);
    }
}
