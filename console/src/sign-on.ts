// What the sign-in page says when single sign-on failed. The address has the name only: a text in the
// address could be anyone's.
export const SSO_FAILURES: Record<string, string> = {
  limited: "Too many sign-ins failed. Wait some minutes and try again.",
  stale: "The sign-in took too long, or began in another browser. Please try again.",
  cancelled: "The sign-in was cancelled at the provider.",
  unavailable: "The sign-in provider does not answer. Try again, or sign in with a password.",
  untrusted: "The answer of the sign-in provider could not be trusted. Try again; if it happens again, tell the operator of this server.",
  no_email: "The sign-in provider did not confirm your email address, so you cannot be recognised.",
  unknown: "No team of this server knows your email. Ask an owner of your team to add you.",
  disabled: "Your membership is disabled. Ask an owner of your team.",
  taken: "Your email belongs to another account here. Ask an owner of your team to set it again.",
  no_team: "Your team does not exist on this server any more. Ask the operator of this server.",
  internal: "The sign-in failed. Try again; if it happens again, tell the operator of this server.",
};
