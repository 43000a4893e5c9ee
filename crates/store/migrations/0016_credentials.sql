-- Credentials of teams. The value is sealed, see docs/decisions/0020-secrets-at-rest.md; `delivery`
-- is what is done with it, as JSON.
CREATE TABLE credentials (
    id           TEXT PRIMARY KEY,
    team_id      TEXT NOT NULL,
    name         TEXT NOT NULL,
    delivery     TEXT NOT NULL,
    sealed_value BLOB NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    last_used_at INTEGER,
    UNIQUE (team_id, name)
) STRICT, WITHOUT ROWID;

-- `bound_to` is the id of a sandbox or of a key.
CREATE TABLE credential_bindings (
    credential_id TEXT NOT NULL,
    bound_to      TEXT NOT NULL,
    PRIMARY KEY (bound_to, credential_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX credential_bindings_by_credential ON credential_bindings (credential_id);
