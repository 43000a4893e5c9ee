-- People who sign in to the console. `name` is unique on the server, because a sign-in names no
-- team. An operator has no team. `sealed_totp` is the secret of the one-time codes; `totp_step` is the
-- last time step whose code was used, so that no code is accepted twice.
CREATE TABLE members (
    id              TEXT PRIMARY KEY,
    team_id         TEXT,
    name            TEXT NOT NULL UNIQUE,
    email           TEXT UNIQUE,
    role            TEXT NOT NULL,
    password_hash   TEXT,
    sealed_totp     BLOB,
    totp_confirmed  INTEGER NOT NULL DEFAULT 0,
    totp_step       INTEGER NOT NULL DEFAULT 0,
    disabled        INTEGER NOT NULL DEFAULT 0,
    created_at      INTEGER NOT NULL,
    last_sign_in_at INTEGER
) STRICT;
CREATE INDEX members_by_team ON members (team_id, created_at);

-- Sign-ins that are still good. The token of the cookie is nowhere: only the SHA-256 of 200 random
-- bits. Without a member it is a sign-in with the admin token, whose digest is kept, so that the
-- sign-in ends with the token.
CREATE TABLE console_sessions (
    id           TEXT PRIMARY KEY,
    digest       TEXT NOT NULL UNIQUE,
    member_id    TEXT,
    admin_digest TEXT,
    address      TEXT,
    user_agent   TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    last_seen_at INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL
) STRICT;
CREATE INDEX console_sessions_by_member ON console_sessions (member_id);

CREATE TRIGGER member_removed AFTER DELETE ON members BEGIN
    DELETE FROM console_sessions WHERE member_id = OLD.id;
END;
CREATE TRIGGER team_members_removed AFTER DELETE ON teams BEGIN
    DELETE FROM members WHERE team_id = OLD.id;
END;

-- Changes through the API and the console. `fields` is a JSON list of names, never of values.
CREATE TABLE audit (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    actor_kind TEXT NOT NULL,
    actor_id   TEXT,
    actor_name TEXT NOT NULL,
    team_id    TEXT,
    address    TEXT,
    action     TEXT NOT NULL,
    target     TEXT,
    fields     TEXT NOT NULL,
    status     INTEGER NOT NULL
) STRICT;
CREATE INDEX audit_by_team ON audit (team_id, seq);
CREATE INDEX audit_by_age ON audit (at);
