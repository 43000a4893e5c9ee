-- Members whom an OpenID provider knows. `oidc_subject` is the issuer and the subject, which stay the
-- same there, unlike an email. `by_rule` says that a rule of the settings made the member: then the
-- rules decide about the team and the role at each sign-in.
ALTER TABLE members ADD COLUMN oidc_subject TEXT;
ALTER TABLE members ADD COLUMN by_rule INTEGER NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX members_by_subject ON members (oidc_subject);
