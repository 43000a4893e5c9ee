// The history of executions: filters that are part of the address, and rows loaded while scrolling.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Schemas, api, unwrap } from "../api/client";
import { nameOf, teamParam, useKeys, useSandboxes } from "../api/lists";
import { onExecution } from "../events";
import { hrefOf, place } from "../router";
import { Status, Time, formatMillis } from "../ui/format";
import { Icon } from "../ui/icons";
import { Empty, Failed, Loading, Metadata, PageHead } from "../ui/parts";
import { VirtualRows } from "../ui/virtual";
import { FilterBar, hasFilters, queryOfFilters } from "./execution-filters";

type Row = Schemas["ExecutionRecord"];
const PAGE = 200;

interface Rows {
  rows: Row[];
  next: string | null;
  state: "loading" | "ready" | "failed";
  error: Error | null;
}

/** Pages of executions for these filters: more when the end comes near, new ones when they start. */
function useExecutions(filters: string) {
  const [state, setState] = useState<Rows>({ rows: [], next: null, state: "loading", error: null });
  const asked = useRef(0);
  const busy = useRef(false);
  const atTop = useRef(true);
  const load = async (cursor: string | null, limit: number, merge: (old: Rows, page: Schemas["ExecutionPage"]) => Rows) => {
    const turn = asked.current;
    busy.current = true;
    try {
      const query = { ...teamParam(), ...Object.fromEntries(new URLSearchParams(filters)), limit, ...(cursor === null ? {} : { cursor }) };
      const page = await unwrap(api.GET("/v1/executions", { params: { query } }));
      if (turn === asked.current) setState((old) => merge(old, page));
    } catch (error) {
      if (turn === asked.current) setState((old) => ({ ...old, state: "failed", error: error as Error }));
    } finally {
      if (turn === asked.current) busy.current = false;
    }
  };
  const start = () => {
    asked.current += 1;
    setState({ rows: [], next: null, state: "loading", error: null });
    load(null, PAGE, (_, page) => ({ rows: page.executions, next: page.next_cursor ?? null, state: "ready", error: null }));
  };
  useEffect(start, [filters]);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const stop = onExecution(() => {
      if (timer !== undefined) return;
      timer = setTimeout(() => {
        timer = undefined;
        if (atTop.current && !busy.current) load(null, 50, mergeNewest);
      }, 400);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [filters]);
  const more = () => {
    if (busy.current || state.next === null || state.state !== "ready") return;
    load(state.next, PAGE, (old, page) => ({ ...old, rows: [...old.rows, ...page.executions], next: page.next_cursor ?? null }));
  };
  return { ...state, more, start, atTop };
}

function mergeNewest(old: Rows, page: Schemas["ExecutionPage"]): Rows {
  const fresh = new Map(page.executions.map((row) => [row.trace_id, row]));
  const known = new Set(old.rows.map((row) => row.trace_id));
  const added = page.executions.filter((row) => !known.has(row.trace_id));
  const rows = [...added, ...old.rows.map((row) => fresh.get(row.trace_id) ?? row)];
  return { ...old, rows, next: old.rows.length === 0 ? page.next_cursor ?? null : old.next, state: "ready", error: null };
}

function useNarrow(): boolean {
  const query = useMemo(() => matchMedia("(max-width: 700px)"), []);
  const [narrow, setNarrow] = useState(query.matches);
  useEffect(() => {
    const update = () => setNarrow(query.matches);
    query.addEventListener("change", update);
    return () => query.removeEventListener("change", update);
  }, []);
  return narrow;
}

export default function ExecutionsPage() {
  const filters = queryOfFilters(place.value.query);
  const list = useExecutions(filters);
  const sandboxes = useSandboxes();
  const keys = useKeys();
  const narrow = useNarrow();
  return (
    <>
      <PageHead title="Executions">
        <button type="button" class="button" onClick={list.start}><Icon name="refresh" /> Refresh</button>
        <a class="button primary" href={hrefOf("/playground")}><Icon name="playground" /> Playground</a>
      </PageHead>
      <FilterBar sandboxes={sandboxes.data ?? []} keys={keys.data ?? []} />
      <div class="card executions" aria-busy={list.state === "loading"}>
        {list.state === "loading" && <Loading lines={12} label="Loading executions" />}
        {list.state === "failed" && list.rows.length === 0 && list.error !== null && <Failed error={list.error} retry={list.start} />}
        {list.state === "ready" && list.rows.length === 0 && <NoRows filtered={hasFilters(place.value.query)} />}
        {list.rows.length > 0 && (
          <VirtualRows
            items={list.rows}
            rowHeight={narrow ? 64 : 40}
            keyOf={(row) => row.trace_id}
            label="Executions"
            onEnd={list.more}
            onTop={(top) => { list.atTop.current = top; }}
            header={<HeadRow />}
            row={(row) => <ExecutionRow row={row} sandbox={nameOf(sandboxes.data, row.sandbox_id)} keyName={nameOf(keys.data, row.key_id)} />}
            foot={<p class="list-foot faint small" role="status">
              {list.state === "failed" ? `Loading more failed: ${list.error?.message}` : list.next !== null ? "Loading more…" : `${list.rows.length.toLocaleString()} executions`}
            </p>}
          />
        )}
      </div>
    </>
  );
}

function NoRows({ filtered }: { filtered: boolean }) {
  return filtered ? (
    <Empty icon="search" title="No execution matches">
      <p>Remove a filter, or widen the time.</p>
      <a class="button" href={hrefOf("/executions")}>Remove all filters</a>
    </Empty>
  ) : (
    <Empty icon="executions" title="Nothing has run yet">
      <p>Run a program in the playground, or create a key and send a request to <code>/v1/sandbox/execute</code>.</p>
      <a class="button primary" href={hrefOf("/playground")}>Open the playground</a>
    </Empty>
  );
}

function HeadRow() {
  return (
    <div role="row" class="execution-row head" aria-rowindex={1}>
      {["Status", "Execution", "Language", "Sandbox", "Key", "Thread", "Metadata", "Duration", "Started"].map((text) => (
        <span role="columnheader" key={text} class={`c-${text.toLowerCase()}`}>{text}</span>
      ))}
    </div>
  );
}

function ExecutionRow({ row, sandbox, keyName }: { row: Row; sandbox: string; keyName: string }) {
  return (
    <div class="execution-row" role="presentation">
      <span role="cell" class="c-status"><Status value={row.status} /></span>
      <span role="cell" class="c-execution cut mono">
        <a href={hrefOf(`/executions/${row.trace_id}`)}>{row.trace_id}</a>
      </span>
      <span role="cell" class="c-language cut">{row.language ?? "–"}</span>
      <span role="cell" class="c-sandbox cut" title={row.sandbox_id}>{sandbox}</span>
      <span role="cell" class="c-key cut" title={row.key_id}>{keyName}</span>
      <span role="cell" class="c-thread cut">
        {row.thread_id !== null && row.thread_id !== undefined && <a href={hrefOf(`/threads/${row.thread_id}`)}>{row.thread_id}</a>}
      </span>
      <span role="cell" class="c-metadata cut"><Metadata values={row.metadata as Record<string, string>} limit={2} /></span>
      <span role="cell" class="c-duration number">{row.status === "running" ? "…" : formatMillis(row.duration_ms)}</span>
      <span role="cell" class="c-started"><Time at={row.created_at} form="short" /></span>
    </div>
  );
}
