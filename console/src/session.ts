// Who is signed in, and which team an operator looks at.
import { computed, effect, signal } from "@preact/signals";
import { ApiFailure, type Schemas, api, onSignedOut, setChosenTeam, setCsrfToken, unwrap } from "./api/client";

export type Session = Schemas["SessionRecord"];

/** `undefined` while it is not known yet, `null` without a session. */
export const session = signal<Session | null | undefined>(undefined);
/** Why there is no session any more, for the sign-in page. */
export const signOutReason = signal<string | null>(null);

const TEAM_KEY = "cloche.team";
const chosenTeam = signal<string>(localStorage.getItem(TEAM_KEY) ?? "default");

/** The team whose things are shown: a member's own, or the one that an operator chose. */
export const teamName = computed(() => session.value?.team?.name ?? chosenTeam.value);
export const isOperator = computed(() => session.value?.role === "operator");
/** Whether the role may run code and change sandboxes, keys and threads. */
export const mayDevelop = computed(() => session.value !== null && session.value?.role !== "viewer");
/** Whether the role may change members, credentials, storage and approvals. */
export const mayOwn = computed(() => {
  const role = session.value?.role;
  return role === "operator" || role === "owner";
});

effect(() => setCsrfToken(session.value?.csrf_token ?? null));
effect(() => setChosenTeam(isOperator.value ? teamName.value : null));
onSignedOut(() => {
  if (session.value !== null && session.value !== undefined) {
    signOutReason.value = "Your session has ended. Please sign in again.";
  }
  session.value = null;
});

/** Chooses the team that an operator looks at. */
export function chooseTeam(name: string): void {
  localStorage.setItem(TEAM_KEY, name);
  chosenTeam.value = name;
}

/** Asks the server whether there is a session. */
export async function loadSession(): Promise<void> {
  try {
    session.value = await unwrap(api.GET("/console/api/session"));
  } catch (failure) {
    if (failure instanceof ApiFailure && failure.status === 401) session.value = null;
    else throw failure;
  }
}

/** Signs in with the admin token or with a name, a password and possibly a code. */
export async function signIn(body: Schemas["SignInBody"]): Promise<void> {
  const made = await unwrap(api.POST("/console/api/session", { body }));
  signOutReason.value = null;
  session.value = made;
}

/** Ends the session here and at the server. */
export async function signOut(): Promise<void> {
  await unwrap(api.DELETE("/console/api/session")).catch(() => {});
  signOutReason.value = null;
  session.value = null;
}
