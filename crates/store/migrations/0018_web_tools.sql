-- The policies of the web tools. Null is for the fleet's setting to say.
ALTER TABLE teams ADD COLUMN web_search TEXT;
ALTER TABLE teams ADD COLUMN fetch_url TEXT;
ALTER TABLE teams ADD COLUMN people_search TEXT;

-- Calls of web tools that a provider answered, each with its price in millionths of a dollar.
-- `trace_id` is the execution whose code made the call; null if a model made it. `response_id` is
-- the response of the Agent API, if there is one.
CREATE TABLE tool_calls (
    decision_id   TEXT PRIMARY KEY,
    team_id       TEXT NOT NULL,
    key_id        TEXT NOT NULL,
    tool          TEXT NOT NULL,
    trace_id      TEXT,
    response_id   TEXT,
    micro_dollars INTEGER NOT NULL,
    at            INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tool_calls_by_execution ON tool_calls (trace_id) WHERE trace_id IS NOT NULL;
CREATE INDEX tool_calls_by_age ON tool_calls (at);
