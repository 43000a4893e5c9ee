-- The number of changes of a row. An update names the revision that it was computed from and changes
-- nothing if the row has another one, so that two writers at once lose no update.
ALTER TABLE teams ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE keys ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
