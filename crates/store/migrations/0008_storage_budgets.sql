-- What the data of each team takes. Triggers keep the counters in the transaction of the row that
-- they count, so that no statement can leave them out. The first start after this migration counts
-- what was there before.

-- Null is for the plan to say.
ALTER TABLE teams ADD COLUMN storage_bytes INTEGER;
-- What the layer of this execution takes.
ALTER TABLE executions ADD COLUMN layer_bytes INTEGER NOT NULL DEFAULT 0;

CREATE TABLE team_storage (
    team_id     TEXT PRIMARY KEY,
    layer_bytes INTEGER NOT NULL,
    row_bytes   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Every layer that a team needs, once. `refs` counts its threads and executions that do.
CREATE TABLE team_layers (
    team_id TEXT NOT NULL,
    layer   TEXT NOT NULL,
    refs    INTEGER NOT NULL,
    bytes   INTEGER NOT NULL,
    PRIMARY KEY (team_id, layer)
) STRICT, WITHOUT ROWID;
CREATE INDEX team_layers_by_layer ON team_layers (layer);

-- Every layer in the history of a thread. `gone_at` is the first point that no longer has it; null
-- while the head has it. A run that leaves its home as it was changes nothing here.
CREATE TABLE thread_layers (
    team_id   TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    layer     TEXT NOT NULL,
    bytes     INTEGER NOT NULL,
    gone_at   INTEGER,
    PRIMARY KEY (team_id, thread_id, layer)
) STRICT, WITHOUT ROWID;
CREATE INDEX thread_layers_by_layer ON thread_layers (team_id, layer);

CREATE TRIGGER layer_added AFTER INSERT ON team_layers BEGIN
    INSERT INTO team_storage VALUES (NEW.team_id, NEW.bytes, 0)
        ON CONFLICT (team_id) DO UPDATE SET layer_bytes = layer_bytes + excluded.layer_bytes;
END;
CREATE TRIGGER layer_removed AFTER DELETE ON team_layers BEGIN
    UPDATE team_storage SET layer_bytes = layer_bytes - OLD.bytes WHERE team_id = OLD.team_id;
END;

CREATE TRIGGER thread_layer_added AFTER INSERT ON thread_layers BEGIN
    INSERT INTO team_layers VALUES (NEW.team_id, NEW.layer, 1, NEW.bytes)
        ON CONFLICT (team_id, layer) DO UPDATE SET refs = refs + 1;
END;
CREATE TRIGGER thread_layer_removed AFTER DELETE ON thread_layers BEGIN
    UPDATE team_layers SET refs = refs - 1 WHERE team_id = OLD.team_id AND layer = OLD.layer;
    DELETE FROM team_layers WHERE team_id = OLD.team_id AND layer = OLD.layer AND refs <= 0;
END;

CREATE TRIGGER execution_layer_added AFTER UPDATE OF layer ON executions
    WHEN NEW.layer IS NOT NULL AND NEW.layer IS NOT OLD.layer BEGIN
    INSERT INTO team_layers VALUES (NEW.team_id, NEW.layer, 1, NEW.layer_bytes)
        ON CONFLICT (team_id, layer) DO UPDATE SET refs = refs + 1;
END;
CREATE TRIGGER execution_layer_removed AFTER UPDATE OF layer ON executions
    WHEN OLD.layer IS NOT NULL AND NEW.layer IS NOT OLD.layer BEGIN
    UPDATE team_layers SET refs = refs - 1 WHERE team_id = OLD.team_id AND layer = OLD.layer;
    DELETE FROM team_layers WHERE team_id = OLD.team_id AND layer = OLD.layer AND refs <= 0;
END;
CREATE TRIGGER execution_with_layer_removed AFTER DELETE ON executions
    WHEN OLD.layer IS NOT NULL BEGIN
    UPDATE team_layers SET refs = refs - 1 WHERE team_id = OLD.team_id AND layer = OLD.layer;
    DELETE FROM team_layers WHERE team_id = OLD.team_id AND layer = OLD.layer AND refs <= 0;
END;

-- A row is its texts and blobs, and a constant for the rest of it and its places in indexes.
CREATE TRIGGER execution_added AFTER INSERT ON executions BEGIN
    INSERT INTO team_storage VALUES (NEW.team_id, 0, 512 + octet_length(NEW.metadata)
        + coalesce(octet_length(NEW.webhook_url), 0) + coalesce(octet_length(NEW.code), 0)
        + coalesce(octet_length(NEW.error), 0))
        ON CONFLICT (team_id) DO UPDATE SET row_bytes = row_bytes + excluded.row_bytes;
END;
CREATE TRIGGER execution_ended AFTER UPDATE OF error, score, stdout, stderr, written ON executions
BEGIN
    UPDATE team_storage SET row_bytes = row_bytes
        + coalesce(octet_length(NEW.error), 0) - coalesce(octet_length(OLD.error), 0)
        + coalesce(octet_length(NEW.score), 0) - coalesce(octet_length(OLD.score), 0)
        + coalesce(octet_length(NEW.stdout), 0) - coalesce(octet_length(OLD.stdout), 0)
        + coalesce(octet_length(NEW.stderr), 0) - coalesce(octet_length(OLD.stderr), 0)
        + coalesce(octet_length(NEW.written), 0) - coalesce(octet_length(OLD.written), 0)
        WHERE team_id = NEW.team_id;
END;
CREATE TRIGGER execution_removed AFTER DELETE ON executions BEGIN
    UPDATE team_storage SET row_bytes = row_bytes - 512 - octet_length(OLD.metadata)
        - coalesce(octet_length(OLD.webhook_url), 0) - coalesce(octet_length(OLD.code), 0)
        - coalesce(octet_length(OLD.error), 0) - coalesce(octet_length(OLD.score), 0)
        - coalesce(octet_length(OLD.stdout), 0) - coalesce(octet_length(OLD.stderr), 0)
        - coalesce(octet_length(OLD.written), 0) WHERE team_id = OLD.team_id;
END;

CREATE TRIGGER point_added AFTER INSERT ON points BEGIN
    INSERT INTO team_storage VALUES (NEW.team_id, 0, 256 + octet_length(NEW.stack))
        ON CONFLICT (team_id) DO UPDATE SET row_bytes = row_bytes + excluded.row_bytes;
END;
CREATE TRIGGER point_removed AFTER DELETE ON points BEGIN
    UPDATE team_storage SET row_bytes = row_bytes - 256 - octet_length(OLD.stack)
        WHERE team_id = OLD.team_id;
END;

CREATE TRIGGER response_added AFTER INSERT ON responses BEGIN
    INSERT INTO team_storage VALUES (NEW.team_id, 0, 256 + octet_length(NEW.record)
        + octet_length(NEW.conversation) + octet_length(NEW.events))
        ON CONFLICT (team_id) DO UPDATE SET row_bytes = row_bytes + excluded.row_bytes;
END;
CREATE TRIGGER response_changed AFTER UPDATE OF record, conversation, events ON responses BEGIN
    UPDATE team_storage SET row_bytes = row_bytes
        + octet_length(NEW.record) - octet_length(OLD.record)
        + octet_length(NEW.conversation) - octet_length(OLD.conversation)
        + octet_length(NEW.events) - octet_length(OLD.events) WHERE team_id = NEW.team_id;
END;
CREATE TRIGGER response_removed AFTER DELETE ON responses BEGIN
    UPDATE team_storage SET row_bytes = row_bytes - 256 - octet_length(OLD.record)
        - octet_length(OLD.conversation) - octet_length(OLD.events) WHERE team_id = OLD.team_id;
END;
