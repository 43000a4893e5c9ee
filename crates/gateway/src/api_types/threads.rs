//! Threads on the wire.

use cloche_engine::{
    HistoryPolicy, PrunedHistory, ThreadDiff, ThreadHistory, ThreadPage, format_rfc3339,
};
use cloche_model::{Invalid, SnapshotRef, Thread, ThreadSnapshot};
use serde::{Deserialize, Serialize};
use serde_json::Number;
use utoipa::{
    ToSchema,
    openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type},
};

use super::number;

/// A thread.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ThreadRecord {
    /// The name that its owner gave it.
    thread_id: String,
    /// When it was first used.
    #[schema(format = DateTime)]
    created_at: String,
    /// When it was last used.
    #[schema(format = DateTime)]
    updated_at: String,
    /// The number of its latest snapshot.
    head: u64,
    /// The number of layers of its home.
    layers: usize,
    /// The size of its home; in lists this may be an upper bound.
    bytes: u64,
    /// The number of files, directories and links; in lists this may be an upper bound.
    entries: u64,
}

impl From<Thread> for ThreadRecord {
    fn from(thread: Thread) -> Self {
        Self {
            thread_id: thread.id.to_string(),
            created_at: format_rfc3339(thread.created_at),
            updated_at: format_rfc3339(thread.updated_at),
            head: thread.head,
            layers: thread.layers.len(),
            bytes: thread.usage.bytes.bytes(),
            entries: thread.usage.entries,
        }
    }
}

/// A page of threads.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ThreadPageRecord {
    /// The threads, sorted by name.
    threads: Vec<ThreadRecord>,
    /// The `cursor` of the next page; null on the last page.
    next_cursor: Option<String>,
}

impl From<ThreadPage> for ThreadPageRecord {
    fn from(page: ThreadPage) -> Self {
        Self {
            threads: page.threads.into_iter().map(ThreadRecord::from).collect(),
            next_cursor: page.next.map(String::from),
        }
    }
}

/// A snapshot of a thread.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PointRecord {
    /// Its number.
    seq: u64,
    /// `run`, `upload`, `fork`, `rollback`, `import` or `squash`.
    kind: &'static str,
    /// The execution that created it, if there was one.
    trace_id: Option<String>,
    /// When it was created.
    #[schema(format = DateTime)]
    created_at: String,
    /// Bytes of the files that were added or changed.
    bytes_added: u64,
    /// Paths that were added, changed or removed.
    files_changed: u64,
    /// The layer with these changes, if there is one.
    layer: Option<String>,
}

impl From<ThreadSnapshot> for PointRecord {
    fn from(point: ThreadSnapshot) -> Self {
        Self {
            seq: point.seq,
            kind: point.kind.name(),
            trace_id: point.trace_id.map(String::from),
            created_at: format_rfc3339(point.at),
            bytes_added: point.added.bytes(),
            files_changed: point.changed,
            layer: point.layer.map(String::from),
        }
    }
}

/// A page of snapshots of a thread.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HistoryPage {
    /// Newest first.
    points: Vec<PointRecord>,
    /// The `cursor` of the next page; null on the last page.
    next_cursor: Option<String>,
}

impl From<ThreadHistory> for HistoryPage {
    fn from(history: ThreadHistory) -> Self {
        Self {
            points: history.points.into_iter().map(PointRecord::from).collect(),
            next_cursor: history.next.map(|seq| seq.to_string()),
        }
    }
}

/// The difference between two snapshots. Paths that are not UTF-8 are shown with U+FFFD.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DiffRecord {
    /// The older snapshot.
    from: u64,
    /// The newer snapshot.
    to: u64,
    /// Paths that only the newer snapshot has.
    added: Vec<String>,
    /// Paths that both have, with different content or attributes.
    changed: Vec<String>,
    /// Paths that only the older snapshot has.
    removed: Vec<String>,
    /// How many paths are not listed.
    omitted: u64,
}

impl From<ThreadDiff> for DiffRecord {
    fn from(diff: ThreadDiff) -> Self {
        let ThreadDiff { from, to, added, changed, removed, omitted } = diff;
        Self { from, to, added, changed, removed, omitted }
    }
}

/// A reference to a snapshot: its number, or the trace id of its execution.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a point is a number or a trace_id")]
pub(crate) enum PointBody {
    Seq(Number),
    Name(String),
}

impl TryFrom<PointBody> for SnapshotRef {
    type Error = Invalid;

    fn try_from(body: PointBody) -> Result<Self, Invalid> {
        match body {
            PointBody::Seq(number) => {
                let seq = number::to_integer(&number).ok_or_else(|| {
                    Invalid::new(format!("{number} is not the number of a point"))
                })?;
                Ok(Self::Seq(seq))
            }
            PointBody::Name(name) => name.parse(),
        }
    }
}

fn point_schema() -> Schema {
    let number =
        ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).maximum(Some(1_000_000));
    let name = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some("^(trc_[A-Za-z0-9_-]{1,20}|[0-9]{1,18})$"));
    Schema::from(OneOfBuilder::new().item(number).item(name).build())
}

fn optional_point_schema() -> Schema {
    match point_schema() {
        Schema::OneOf(mut choice) => {
            choice.items.push(ObjectBuilder::new().schema_type(Type::Null).into());
            Schema::OneOf(choice)
        }
        other => other,
    }
}

/// A request to fork a thread.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ForkBody {
    /// The new thread.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    pub(crate) thread_id: String,
    /// The snapshot, by its number or its execution; the latest if absent.
    #[schema(schema_with = optional_point_schema)]
    pub(crate) at: Option<PointBody>,
}

/// A request to roll back a thread.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct RollbackBody {
    /// The snapshot, by its number or its execution.
    #[schema(schema_with = point_schema)]
    pub(crate) to: PointBody,
}

/// The snapshots to drop: those that every given rule selects. Without rules, the plan's policy
/// applies.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PruneBody {
    /// Keep this many of the latest snapshots.
    #[serde(default, deserialize_with = "number::whole")]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    keep: Option<u64>,
    /// Drop only snapshots older than this.
    #[serde(default, deserialize_with = "number::whole")]
    #[schema(minimum = 0, maximum = 36500)]
    older_than_days: Option<u32>,
}

impl From<PruneBody> for HistoryPolicy {
    fn from(body: PruneBody) -> Self {
        Self { keep: body.keep, older_than_days: body.older_than_days }
    }
}

/// The result of pruning.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PruneRecord {
    /// The number of snapshots dropped.
    points: u64,
    /// By how much the team's stored bytes decreased.
    freed_bytes: u64,
}

impl From<PrunedHistory> for PruneRecord {
    fn from(pruned: PrunedHistory) -> Self {
        Self { points: pruned.points, freed_bytes: pruned.freed_bytes }
    }
}
