-- One row for each response of the Agent API. What is in `record`, `conversation` and `events` is
-- the agent's own JSON; the columns before them are what a row is found and ended by.
CREATE TABLE responses (
    id           TEXT PRIMARY KEY,
    team_id      TEXT NOT NULL,
    key_id       TEXT NOT NULL,
    sandbox_id   TEXT NOT NULL,
    status       TEXT NOT NULL,
    visible      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    completed_at INTEGER,
    record       TEXT NOT NULL,
    conversation TEXT NOT NULL,
    events       TEXT NOT NULL
) STRICT;
CREATE INDEX responses_by_age ON responses (sandbox_id, created_at);
-- Whatever is not over when the server starts was cut short.
CREATE INDEX responses_open ON responses (status) WHERE completed_at IS NULL;
