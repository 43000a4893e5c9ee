-- Calls of web tools on each day, and their price in millionths of a dollar: see docs/TOOLS.md. A
-- trigger adds a call in the transaction that records it. A call that is pruned stays counted.
ALTER TABLE usage_days ADD COLUMN tool_calls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage_days ADD COLUMN tool_micro_dollars INTEGER NOT NULL DEFAULT 0;

-- A value and a day are cut at 10^15, so that no sum of days exceeds an integer.
CREATE TRIGGER tool_call_used AFTER INSERT ON tool_calls BEGIN
    INSERT INTO usage_days (team_id, day, key_id, executions, micro_credits, wall_ms, cpu_ms,
        received_bytes, sent_bytes, tool_calls, tool_micro_dollars)
        VALUES (NEW.team_id, NEW.at / 86400000000, NEW.key_id, 0, 0, 0, 0, 0, 0, 1,
        min(NEW.micro_dollars, 1000000000000000))
        ON CONFLICT (team_id, day, key_id) DO UPDATE SET
        tool_calls = tool_calls + 1,
        tool_micro_dollars =
            min(tool_micro_dollars + excluded.tool_micro_dollars, 1000000000000000);
END;

-- Calls that are recorded already count, too.
INSERT INTO usage_days (team_id, day, key_id, executions, micro_credits, wall_ms, cpu_ms,
    received_bytes, sent_bytes, tool_calls, tool_micro_dollars)
    SELECT team_id, at / 86400000000, key_id, 0, 0, 0, 0, 0, 0, count(*),
        min(sum(min(micro_dollars, 1000000000000)), 1000000000000000)
        FROM tool_calls WHERE true GROUP BY 1, 2, 3
    ON CONFLICT (team_id, day, key_id) DO UPDATE SET
    tool_calls = excluded.tool_calls, tool_micro_dollars = excluded.tool_micro_dollars;
