-- Secrets are sealed with a key that is not in the database, see docs/decisions/0020-secrets-at-rest.md.
-- A sealed value is a version byte, the id of the key, a nonce, and the ciphertext with its tag.

-- Which key seals, and whether plain text of an earlier version is gone from free pages and the log,
-- too. One row, from the first start on.
CREATE TABLE sealing_key (
    only      INTEGER PRIMARY KEY CHECK (only = 1),
    key_id    TEXT NOT NULL,
    is_erased INTEGER NOT NULL
) STRICT;

-- `webhook_secret` and the setting `url_signing_key` held plain text before; they are moved at the start.
ALTER TABLE keys ADD COLUMN sealed_webhook_secret BLOB;
ALTER TABLE keys ADD COLUMN sealed_env BLOB;
ALTER TABLE sandboxes ADD COLUMN sealed_env BLOB;

CREATE TABLE sealed_settings (
    id           TEXT PRIMARY KEY,
    sealed_value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
