-- How a response of the Agent API is shown while a call of it waits for a person. If null,
-- the setting of the fleet applies.
ALTER TABLE teams ADD COLUMN pending_approval TEXT;
