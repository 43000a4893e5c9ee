-- How a response of the Agent API is shown while a call of it waits for a person. Null is for the
-- fleet's setting to say.
ALTER TABLE teams ADD COLUMN pending_approval TEXT;
