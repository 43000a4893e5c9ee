// What the server says by itself: one stream of events for the whole console.
import { effect, signal } from "@preact/signals";
import type { Schemas } from "./api/client";
import { isOperator, session, signOutReason, teamName } from "./session";

export type OverviewNow = Schemas["OverviewNow"];
/** What the stream says of an execution; events are not part of the OpenAPI description. */
export interface ExecutionEvent {
  kind: "started" | "ended";
  trace_id: string;
  thread_id: string | null;
}

export const overviewNow = signal<OverviewNow | null>(null);
export const pendingApprovals = signal(0);
/** Whether the stream is open. `null` before its first attempt has ended. */
export const isLive = signal<boolean | null>(null);
/** Whether the figures are those of all teams, which operators may choose. */
export const wholeServer = signal(false);

type Listener = (event: ExecutionEvent) => void;
const listeners = new Set<Listener>();

/** Calls `listener` for each execution that starts or ends. Returns how to stop. */
export function onExecution(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Keeps one stream open while somebody is signed in. */
export function startEvents(): void {
  effect(() => {
    const current = session.value;
    if (current === null || current === undefined) return;
    const everything = isOperator.value && wholeServer.value;
    const team = isOperator.value ? `?team=${encodeURIComponent(teamName.value)}` : "";
    return openStream(`/console/api/events${everything ? "" : team}`);
  });
}

function openStream(address: string): () => void {
  const source = new EventSource(address);
  source.addEventListener("open", () => {
    isLive.value = true;
  });
  source.addEventListener("error", () => {
    isLive.value = false;
  });
  source.addEventListener("overview", (event) => {
    overviewNow.value = JSON.parse(event.data) as OverviewNow;
  });
  source.addEventListener("approvals", (event) => {
    pendingApprovals.value = (JSON.parse(event.data) as { pending: number }).pending;
  });
  source.addEventListener("execution", (event) => {
    const change = JSON.parse(event.data) as ExecutionEvent;
    for (const listener of listeners) listener(change);
  });
  source.addEventListener("end", () => {
    source.close();
    signOutReason.value = "Your session has ended. Please sign in again.";
    session.value = null;
  });
  return () => {
    source.close();
    overviewNow.value = null;
    isLive.value = null;
  };
}
