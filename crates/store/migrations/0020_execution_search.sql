-- An inverted index of executions that are over, so that a list by any filters needs no index of its
-- own on the ledger: see docs/decisions/0049-a-search-index-beside-the-ledger.md. It is fed in the
-- background. `tags` has one token for each value that can be filtered by; `body` is the beginning
-- of code and output. The rowid is that of the execution.
CREATE VIRTUAL TABLE execution_search USING fts5(
    tags, body, content='', contentless_delete=1,
    tokenize="unicode61 remove_diacritics 0 tokenchars '_'"
);

-- Everything up to this rowid is in the index, except for the executions in `search_pending`, which
-- were still running. `trace_id` is the execution of that rowid, to notice that rowids have changed.
CREATE TABLE search_progress (
    only       INTEGER PRIMARY KEY CHECK (only = 1),
    indexed_to INTEGER NOT NULL,
    trace_id   TEXT
) STRICT;
INSERT INTO search_progress VALUES (1, 0, NULL);
CREATE TABLE search_pending (execution INTEGER PRIMARY KEY) STRICT;

-- SQLite may give the rowid of the last execution again once it is deleted.
CREATE TRIGGER execution_unindexed AFTER DELETE ON executions BEGIN
    DELETE FROM execution_search WHERE rowid = OLD.rowid;
    DELETE FROM search_pending WHERE execution = OLD.rowid;
    UPDATE search_progress SET trace_id = NULL,
        indexed_to = coalesce((SELECT max(rowid) FROM executions), 0)
        WHERE indexed_to > coalesce((SELECT max(rowid) FROM executions), 0);
END;

-- Where the time of an execution went.
ALTER TABLE executions ADD COLUMN phases TEXT;
