-- When threads were deleted, for as long as a URL that was signed before may still be good.

CREATE TABLE deleted_threads (
    team_id    TEXT NOT NULL,
    thread_id  TEXT NOT NULL,
    deleted_at INTEGER NOT NULL,
    PRIMARY KEY (team_id, thread_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX deleted_threads_by_time ON deleted_threads (deleted_at);
