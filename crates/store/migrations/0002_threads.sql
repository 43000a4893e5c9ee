-- Homes that outlive a run. A stack is a JSON list of layer digests, the oldest first.

CREATE TABLE threads (
    team_id    TEXT NOT NULL,
    thread_id  TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    head       INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    entries    INTEGER NOT NULL,
    counted    INTEGER NOT NULL,
    stack      TEXT NOT NULL,
    PRIMARY KEY (team_id, thread_id)
) STRICT, WITHOUT ROWID;

-- What a thread can go back to. Rows are added and go with their thread; none is ever changed.
CREATE TABLE points (
    team_id   TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    seq       INTEGER NOT NULL,
    kind      TEXT NOT NULL,
    trace_id  TEXT,
    at        INTEGER NOT NULL,
    layer     TEXT,
    added     INTEGER NOT NULL,
    changed   INTEGER NOT NULL,
    bytes     INTEGER NOT NULL,
    entries   INTEGER NOT NULL,
    counted   INTEGER NOT NULL,
    stack     TEXT NOT NULL,
    PRIMARY KEY (team_id, thread_id, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX points_by_trace ON points (trace_id) WHERE trace_id IS NOT NULL;

-- What a run wrote: the layer by itself, so that what is still needed can be listed, and all of it.
ALTER TABLE executions ADD COLUMN layer TEXT;
ALTER TABLE executions ADD COLUMN written TEXT;
CREATE INDEX executions_with_layer ON executions (layer) WHERE layer IS NOT NULL;
