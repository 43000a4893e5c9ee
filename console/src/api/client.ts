// Calls of the API, typed by its OpenAPI description. Knows no page.
import createClient, { type Middleware } from "openapi-fetch";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

/** An answer that is not a success, in the words of the server. */
export class ApiFailure extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly retryAfter: number | null = null,
  ) {
    super(message);
  }
}

let csrfToken: string | null = null;
let chosenTeam: string | null = null;
let signedOut: () => void = () => {};

/** Sets the token that every changing request carries. */
export function setCsrfToken(token: string | null): void {
  csrfToken = token;
}

/** Sets the team that an operator looks at, which calls about the things of one team name. */
export function setChosenTeam(team: string | null): void {
  chosenTeam = team;
}

/** Sets what happens when the server says that there is no session any more. */
export function onSignedOut(handler: () => void): void {
  signedOut = handler;
}

function isChanging(method: string): boolean {
  return method !== "GET" && method !== "HEAD";
}

const middleware: Middleware = {
  onRequest({ request }) {
    if (csrfToken !== null && isChanging(request.method)) {
      request.headers.set("X-Cloche-CSRF", csrfToken);
    }
    const url = new URL(request.url);
    const isOfTeam = /^\/v1\/(executions|responses)\b/.test(url.pathname);
    if (chosenTeam === null || !isOfTeam || request.body !== null || url.searchParams.has("team")) return request;
    url.searchParams.set("team", chosenTeam);
    return new Request(url, request);
  },
};

export const api = createClient<paths>({ baseUrl: "", credentials: "same-origin" });
api.use(middleware);

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** The body of a successful answer. Throws what the server said otherwise. */
export async function unwrap<T>(call: Promise<Answer<T>>): Promise<T> {
  let answer: Answer<T>;
  try {
    answer = await call;
  } catch (cause) {
    if (cause instanceof DOMException && cause.name === "AbortError") throw cause;
    throw new ApiFailure(0, "unreachable", "The server could not be reached. Check your connection.");
  }
  if (answer.response.ok) return answer.data as T;
  throw describeFailure(answer.response, answer.error);
}

function describeFailure(response: Response, body: unknown): ApiFailure {
  const said = (typeof body === "object" && body !== null ? body : {}) as Partial<Schemas["ErrorBody"]>;
  const code = said.error ?? String(response.status);
  const message = said.message ?? `The server answered ${response.status}.`;
  const after = Number(response.headers.get("retry-after") ?? NaN);
  if (response.status === 401 && code === "unauthorized") signedOut();
  return new ApiFailure(response.status, code, message, Number.isFinite(after) ? after : null);
}

/** A request whose answer is not JSON: streams and files. Throws if it is not a success. */
export async function fetchRaw(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (csrfToken !== null && isChanging(init.method ?? "GET")) {
    headers.set("X-Cloche-CSRF", csrfToken);
  }
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers, credentials: "same-origin" });
  } catch (cause) {
    if (cause instanceof DOMException && cause.name === "AbortError") throw cause;
    throw new ApiFailure(0, "unreachable", "The server could not be reached. Check your connection.");
  }
  if (response.ok) return response;
  const body: unknown = await response.json().catch(() => null);
  throw describeFailure(response, body);
}

/** The JSON objects of a stream with one per line. */
export async function* readLines(response: Response): AsyncGenerator<unknown> {
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += value ?? "";
      const lines = rest.split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (line.trim() !== "") yield JSON.parse(line);
      }
      if (done) break;
    }
    if (rest.trim() !== "") yield JSON.parse(rest);
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** A path segment or several, each encoded. */
export function encodePath(path: string): string {
  return path.split("/").map(encodeURIComponent).join("/");
}
