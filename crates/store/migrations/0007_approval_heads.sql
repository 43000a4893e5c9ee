-- An approval is good for one state of the home that the call runs in: `home` is the JSON list of its
-- layers, and null for a call without a thread. `changes` is for the approver to read, and goes with
-- `arguments`.
ALTER TABLE approvals ADD COLUMN thread_id TEXT;
ALTER TABLE approvals ADD COLUMN home TEXT;
ALTER TABLE approvals ADD COLUMN changes TEXT;

-- The state of each thread that a person approved last: the next one is shown what differs from it.
CREATE TABLE approved_homes (
    team_id     TEXT NOT NULL,
    thread_id   TEXT NOT NULL,
    home        TEXT NOT NULL,
    approval_id TEXT NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (team_id, thread_id)
) STRICT, WITHOUT ROWID;
