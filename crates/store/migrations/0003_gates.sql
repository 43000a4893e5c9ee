-- The gates in front of agent tools. Null is for the fleet's setting to say.
ALTER TABLE teams ADD COLUMN agent_sandbox INTEGER;
ALTER TABLE teams ADD COLUMN execute_code TEXT;
ALTER TABLE teams ADD COLUMN elicitation INTEGER;
ALTER TABLE keys ADD COLUMN may_approve INTEGER NOT NULL DEFAULT 0;

-- Calls that wait for a person. `arguments` is for them to read, and goes when the call does.
CREATE TABLE approvals (
    id              TEXT PRIMARY KEY,
    team_id         TEXT NOT NULL,
    key_id          TEXT NOT NULL,
    tool            TEXT NOT NULL,
    digest          TEXT NOT NULL,
    state           TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    expires_at      INTEGER NOT NULL,
    decided_at      INTEGER,
    decided_by      TEXT,
    reason          TEXT,
    arguments_bytes INTEGER NOT NULL,
    arguments       TEXT
) STRICT;
CREATE INDEX approvals_by_call ON approvals (team_id, key_id, tool, digest, state);
CREATE INDEX approvals_open ON approvals (expires_at) WHERE state IN ('pending', 'approved');
CREATE INDEX approvals_by_age ON approvals (created_at, id);

-- Who decided what, and when. Rows are added; only `trace_id` is filled in later.
CREATE TABLE decisions (
    id          TEXT PRIMARY KEY,
    kind        TEXT NOT NULL,
    decided_by  TEXT NOT NULL,
    at          INTEGER NOT NULL,
    team_id     TEXT,
    key_id      TEXT,
    tool        TEXT,
    digest      TEXT,
    approval_id TEXT,
    trace_id    TEXT,
    note        TEXT
) STRICT;
CREATE INDEX decisions_by_age ON decisions (at, id);
CREATE INDEX decisions_by_team ON decisions (team_id, at);
CREATE INDEX decisions_by_execution ON decisions (trace_id) WHERE trace_id IS NOT NULL;
