-- What each key used on each day in UTC: see docs/decisions/0026-credits-and-usage.md. A trigger
-- adds an execution in the transaction of its outcome, so that no statement can leave it out. A
-- deleted execution stays counted. `key_id` is empty for transfers by a URL that the admin token
-- signed.

-- The team's own allowance. If null, the allowance of its plan applies.
ALTER TABLE teams ADD COLUMN monthly_micro_credits INTEGER;

CREATE TABLE usage_days (
    team_id        TEXT NOT NULL,
    -- Days since 1970-01-01.
    day            INTEGER NOT NULL,
    key_id         TEXT NOT NULL,
    executions     INTEGER NOT NULL,
    micro_credits  INTEGER NOT NULL,
    wall_ms        INTEGER NOT NULL,
    cpu_ms         INTEGER NOT NULL,
    -- Bodies of HTTP requests and of their responses.
    received_bytes INTEGER NOT NULL,
    sent_bytes     INTEGER NOT NULL,
    PRIMARY KEY (team_id, day, key_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_days_by_day ON usage_days (day);
CREATE INDEX usage_days_by_key ON usage_days (key_id, day);

-- A value and a day are cut at 10^15, so that no sum of days exceeds an integer.
CREATE TRIGGER execution_used AFTER UPDATE OF status ON executions
    WHEN OLD.status = 'running' AND NEW.status != 'running' BEGIN
    INSERT INTO usage_days VALUES (NEW.team_id,
        coalesce(NEW.completed_at, NEW.created_at) / 86400000000, NEW.key_id, 1,
        min(NEW.micro_credits, 1000000000000000), min(NEW.wall_ms, 1000000000000000),
        min(NEW.cpu_ms, 1000000000000000), 0, 0)
        ON CONFLICT (team_id, day, key_id) DO UPDATE SET
        executions = executions + 1,
        micro_credits = min(micro_credits + excluded.micro_credits, 1000000000000000),
        wall_ms = min(wall_ms + excluded.wall_ms, 1000000000000000),
        cpu_ms = min(cpu_ms + excluded.cpu_ms, 1000000000000000);
END;

-- Executions that are in the ledger already count with what they were charged.
INSERT INTO usage_days SELECT team_id, coalesce(completed_at, created_at) / 86400000000, key_id,
    count(*), min(sum(min(micro_credits, 1000000000000)), 1000000000000000),
    min(sum(min(wall_ms, 1000000000000)), 1000000000000000),
    min(sum(min(cpu_ms, 1000000000000)), 1000000000000000), 0, 0
    FROM executions WHERE status NOT IN ('running', 'blocked') GROUP BY 1, 2, 3;
