-- Times are microseconds since 1970, UTC. Sets and maps are JSON text.

CREATE TABLE teams (
    id              TEXT PRIMARY KEY,
    name            TEXT NOT NULL UNIQUE,
    plan            TEXT NOT NULL,
    max_concurrency INTEGER,
    max_timeout_s   INTEGER,
    created_at      INTEGER NOT NULL
) STRICT;

CREATE TABLE sandboxes (
    id             TEXT PRIMARY KEY,
    team_id        TEXT NOT NULL,
    name           TEXT NOT NULL,
    shape          TEXT NOT NULL,
    resources      TEXT NOT NULL,
    env            TEXT NOT NULL,
    retain_code    INTEGER NOT NULL,
    retention_days INTEGER,
    created_at     INTEGER NOT NULL,
    UNIQUE (team_id, name)
) STRICT;

-- The secret itself is nowhere: only the SHA-256 of 160 random bits, which needs no slow hash.
CREATE TABLE keys (
    id             TEXT PRIMARY KEY,
    team_id        TEXT NOT NULL,
    sandbox_id     TEXT NOT NULL,
    name           TEXT NOT NULL,
    prefix         TEXT NOT NULL,
    digest         TEXT NOT NULL UNIQUE,
    env            TEXT NOT NULL,
    webhook_url    TEXT,
    webhook_secret TEXT,
    created_at     INTEGER NOT NULL,
    revoked_at     INTEGER
) STRICT;
CREATE INDEX keys_by_team ON keys (team_id, created_at);
CREATE INDEX keys_by_sandbox ON keys (sandbox_id);

-- One row for each execution, refused ones too. Large values come last: SQLite then finds the
-- small ones without walking their overflow pages.
CREATE TABLE executions (
    trace_id       TEXT PRIMARY KEY,
    team_id        TEXT NOT NULL,
    key_id         TEXT NOT NULL,
    sandbox_id     TEXT NOT NULL,
    language       TEXT,
    thread_id      TEXT,
    delivery       TEXT NOT NULL,
    webhook_url    TEXT,
    metadata       TEXT NOT NULL,
    status         TEXT NOT NULL,
    created_at     INTEGER NOT NULL,
    completed_at   INTEGER,
    exit_code      INTEGER,
    error          TEXT,
    stdout_dropped INTEGER NOT NULL DEFAULT 0,
    stderr_dropped INTEGER NOT NULL DEFAULT 0,
    wall_ms        INTEGER NOT NULL DEFAULT 0,
    cpu_ms         INTEGER NOT NULL DEFAULT 0,
    peak_memory    INTEGER NOT NULL DEFAULT 0,
    micro_credits  INTEGER NOT NULL DEFAULT 0,
    code_digest    TEXT NOT NULL,
    code_bytes     INTEGER NOT NULL,
    code           BLOB,
    score          TEXT,
    stdout         BLOB,
    stderr         BLOB
) STRICT;
CREATE INDEX executions_by_team ON executions (team_id, created_at DESC, trace_id DESC);
CREATE INDEX executions_running ON executions (status) WHERE status = 'running';
CREATE INDEX executions_by_age ON executions (sandbox_id, created_at);

-- Who holds a thread. `expires_at` frees it even if nobody ever gives it back.
CREATE TABLE thread_leases (
    team_id    TEXT NOT NULL,
    thread_id  TEXT NOT NULL,
    trace_id   TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (team_id, thread_id)
) STRICT, WITHOUT ROWID;

-- What still has to be sent. The body is made from the execution, so it is kept only once.
CREATE TABLE deliveries (
    trace_id   TEXT PRIMARY KEY,
    key_id     TEXT NOT NULL,
    url        TEXT NOT NULL,
    status     TEXT NOT NULL,
    attempts   INTEGER NOT NULL DEFAULT 0,
    queued_at  INTEGER NOT NULL,
    next_at    INTEGER NOT NULL,
    last_error TEXT
) STRICT;
CREATE INDEX deliveries_due ON deliveries (next_at) WHERE status = 'pending';

CREATE TABLE settings (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
