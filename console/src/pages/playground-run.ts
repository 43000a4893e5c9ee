// One run of the playground: starts it, follows its stream, cancels it.
import { useRef, useState } from "preact/hooks";
import { type Schemas, api, fetchRaw, readLines, unwrap } from "../api/client";
import { teamSearch } from "../api/lists";
import { NO_PROBLEMS, type Problems, assignProblem } from "../ui/form";
import { type OutputPiece, appendPiece } from "../ui/output";
import { attempt } from "../ui/parts";
import { type Draft, bodyOf } from "./playground-draft";

export interface Run {
  state: "idle" | "starting" | "running" | "done";
  pieces: OutputPiece[];
  traceId: string | null;
  status: string | null;
  result: Schemas["ExecuteResult"] | null;
  problem: string | null;
  /** What the server said about the inputs. */
  refused: Problems;
}

const INPUTS = ["thread_id", "timeout", "stdin", "env_vars", "metadata"];

const IDLE: Run = { state: "idle", pieces: [], traceId: null, status: null, result: null, problem: null, refused: NO_PROBLEMS };

type StreamEvent =
  | { type: "status"; trace_id: string }
  | { type: "output"; stream: "stdout" | "stderr"; data: string }
  | { type: "keepalive" }
  | { type: "result"; trace_id: string; status: string; result: Schemas["ExecuteResult"] };

export function useRun() {
  const [run, setRun] = useState<Run>(IDLE);
  const current = useRef<{ traceId: string | null; busy: boolean }>({ traceId: null, busy: false });

  const take = (event: StreamEvent) => {
    if (event.type === "status") {
      current.current.traceId = event.trace_id;
      setRun((old) => ({ ...old, state: "running", traceId: event.trace_id }));
    } else if (event.type === "output") {
      setRun((old) => ({ ...old, pieces: appendPiece(old.pieces, event) }));
    } else if (event.type === "result") {
      setRun((old) => ({
        ...old, state: "done", status: event.status, result: event.result, traceId: event.trace_id,
        problem: event.result.error ?? null,
      }));
    }
  };

  const start = async (sandbox: string, key: string, draft: Draft) => {
    if (current.current.busy) return;
    current.current = { traceId: null, busy: true };
    setRun({ ...IDLE, state: "starting" });
    try {
      const response = await fetchRaw(`/v1/sandbox/execute${teamSearch(key === "" ? { sandbox } : { key })}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", Accept: "application/x-ndjson" },
        body: JSON.stringify(bodyOf(draft)),
      });
      for await (const line of readLines(response)) take(line as StreamEvent);
      setRun((old) => (old.state === "done" ? old : { ...old, state: "done", problem: "The stream ended before the program did. Its details show how it went on." }));
    } catch (failure) {
      const refused = assignProblem(failure, INPUTS);
      setRun((old) => ({ ...old, state: refused.other === null ? "idle" : "done", problem: refused.other, refused }));
    }
    current.current.busy = false;
  };

  const cancel = () => {
    const id = current.current.traceId;
    if (id === null) return;
    attempt(() => unwrap(api.POST("/v1/executions/{trace_id}/cancel", { params: { path: { trace_id: id } } })), "Cancelling");
  };
  return { run, start, cancel };
}
