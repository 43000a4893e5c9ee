-- Responses of a team, newest first. Those that were not to be stored are not listed.
CREATE INDEX responses_by_team ON responses (team_id, created_at DESC, id DESC) WHERE visible;
