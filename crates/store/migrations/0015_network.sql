-- What executions transferred over their network, and what was denied to them: see
-- docs/decisions/0034-attaching-a-network.md. `network` is the report as JSON; null if the
-- execution had no network.

ALTER TABLE executions ADD COLUMN network TEXT;
ALTER TABLE executions ADD COLUMN network_in_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE executions ADD COLUMN network_out_bytes INTEGER NOT NULL DEFAULT 0;

-- The report counts towards the storage of its team, as the other texts of a row do.
CREATE TRIGGER execution_network_reported AFTER UPDATE OF network ON executions BEGIN
    UPDATE team_storage SET row_bytes = row_bytes
        + coalesce(octet_length(NEW.network), 0) - coalesce(octet_length(OLD.network), 0)
        WHERE team_id = NEW.team_id;
END;
CREATE TRIGGER execution_with_network_removed AFTER DELETE ON executions
    WHEN OLD.network IS NOT NULL BEGIN
    UPDATE team_storage SET row_bytes = row_bytes - octet_length(OLD.network)
        WHERE team_id = OLD.team_id;
END;

-- Bytes that executions of a day received and sent.
ALTER TABLE usage_days ADD COLUMN network_in_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage_days ADD COLUMN network_out_bytes INTEGER NOT NULL DEFAULT 0;

-- A value and a day are cut at 10^15, so that no sum of days exceeds an integer.
DROP TRIGGER execution_used;
CREATE TRIGGER execution_used AFTER UPDATE OF status ON executions
    WHEN OLD.status = 'running' AND NEW.status != 'running' BEGIN
    INSERT INTO usage_days (team_id, day, key_id, executions, micro_credits, wall_ms, cpu_ms,
        received_bytes, sent_bytes, network_in_bytes, network_out_bytes) VALUES (NEW.team_id,
        coalesce(NEW.completed_at, NEW.created_at) / 86400000000, NEW.key_id, 1,
        min(NEW.micro_credits, 1000000000000000), min(NEW.wall_ms, 1000000000000000),
        min(NEW.cpu_ms, 1000000000000000), 0, 0,
        min(NEW.network_in_bytes, 1000000000000000), min(NEW.network_out_bytes, 1000000000000000))
        ON CONFLICT (team_id, day, key_id) DO UPDATE SET
        executions = executions + 1,
        micro_credits = min(micro_credits + excluded.micro_credits, 1000000000000000),
        wall_ms = min(wall_ms + excluded.wall_ms, 1000000000000000),
        cpu_ms = min(cpu_ms + excluded.cpu_ms, 1000000000000000),
        network_in_bytes = min(network_in_bytes + excluded.network_in_bytes, 1000000000000000),
        network_out_bytes = min(network_out_bytes + excluded.network_out_bytes, 1000000000000000);
END;
