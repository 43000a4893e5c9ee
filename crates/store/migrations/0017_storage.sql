-- Connections and volumes of teams, what may use them, and the bytes that executions read and wrote
-- through them: see docs/decisions/0038-storage-connections-and-volumes.md.

CREATE TABLE storage_sources (
    id                 TEXT PRIMARY KEY,
    team_id            TEXT NOT NULL,
    -- The mount point below /data, so connections and volumes share their names.
    name               TEXT NOT NULL,
    kind               TEXT NOT NULL CHECK (kind IN ('connection', 'volume')),
    settings           TEXT NOT NULL,
    -- The secret parts of a connection, sealed: see docs/decisions/0020-secrets-at-rest.md.
    sealed_credentials BLOB,
    created_at         INTEGER NOT NULL,
    UNIQUE (team_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE storage_bindings (
    storage_id TEXT NOT NULL,
    -- A sandbox or a key.
    user_id    TEXT NOT NULL,
    path       TEXT NOT NULL,
    read_only  INTEGER NOT NULL,
    PRIMARY KEY (user_id, storage_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX storage_bindings_by_storage ON storage_bindings (storage_id);

CREATE TRIGGER sandbox_storage_unbound AFTER DELETE ON sandboxes BEGIN
    DELETE FROM storage_bindings WHERE user_id = OLD.id;
END;
CREATE TRIGGER key_storage_unbound AFTER DELETE ON keys BEGIN
    DELETE FROM storage_bindings WHERE user_id = OLD.id;
END;
CREATE TRIGGER team_storage_removed AFTER DELETE ON teams BEGIN
    DELETE FROM storage_bindings WHERE storage_id IN
        (SELECT id FROM storage_sources WHERE team_id = OLD.id);
    DELETE FROM storage_sources WHERE team_id = OLD.id;
END;

-- The mounts of an execution with the bytes that it read and wrote, as JSON; null without mounts.
ALTER TABLE executions ADD COLUMN mounts TEXT;

-- `name` is that of the connection or volume when the bytes were counted.
CREATE TABLE storage_days (
    team_id       TEXT NOT NULL,
    -- Days since 1970-01-01.
    day           INTEGER NOT NULL,
    key_id        TEXT NOT NULL,
    name          TEXT NOT NULL,
    read_bytes    INTEGER NOT NULL,
    written_bytes INTEGER NOT NULL,
    PRIMARY KEY (team_id, day, key_id, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX storage_days_by_day ON storage_days (day);

-- In the transaction of the outcome, as for the rest of the usage. Values are cut at 10^15, so that
-- no sum of days exceeds an integer.
CREATE TRIGGER storage_used AFTER UPDATE OF status ON executions
    WHEN OLD.status = 'running' AND NEW.status != 'running' AND NEW.mounts IS NOT NULL BEGIN
    INSERT INTO storage_days SELECT NEW.team_id,
        coalesce(NEW.completed_at, NEW.created_at) / 86400000000, NEW.key_id,
        json_extract(value, '$.name'),
        min(json_extract(value, '$.bytes_read'), 1000000000000000),
        min(json_extract(value, '$.bytes_written'), 1000000000000000)
        FROM json_each(NEW.mounts) WHERE true
        ON CONFLICT (team_id, day, key_id, name) DO UPDATE SET
        read_bytes = min(read_bytes + excluded.read_bytes, 1000000000000000),
        written_bytes = min(written_bytes + excluded.written_bytes, 1000000000000000);
END;
