// One thread: its snapshots as a graph, the difference between two of them, and its files.
import { useEffect, useState } from "preact/hooks";
import { type Schemas, api, unwrap } from "../api/client";
import { teamParam, teamSearch } from "../api/lists";
import { onExecution } from "../events";
import { hrefOf, navigate, place, setQuery } from "../router";
import type { PageProps } from "../routes";
import { mayDevelop } from "../session";
import { TextField, FormFoot, useSubmit } from "../ui/form";
import { Time, formatBytes, formatNumber } from "../ui/format";
import { Icon } from "../ui/icons";
import { OlderButton, usePages } from "../ui/paged";
import { Confirm, Dialog, Failed, Loading, PageHead, Tabs, attempt, toast } from "../ui/parts";
import { useQuery } from "../ui/query";
import { DiffView } from "./thread-diff";
import { FilesView } from "./thread-files";

type Point = Schemas["PointRecord"];

export default function ThreadPage({ params }: PageProps) {
  const id = params.id ?? "";
  const path = { thread_id: id };
  const thread = useQuery((signal) => unwrap(api.GET("/v1/threads/{thread_id}", { params: { path, query: teamParam() }, signal })), [id]);
  const history = usePages(async (cursor, signal) => {
    const query = { ...teamParam(), limit: 200, ...(cursor === undefined ? {} : { cursor }) };
    const page = await unwrap(api.GET("/v1/threads/{thread_id}/history", { params: { path, query }, ...(signal === undefined ? {} : { signal }) }));
    return { items: page.points, next: page.next_cursor };
  }, [id]);
  const reload = () => {
    thread.reload();
    history.reload();
  };
  useEffect(() => onExecution((event) => {
    if (event.kind === "ended" && event.thread_id === id) reload();
  }), [id]);
  const view = place.value.query.get("view") === "files" ? "files" : place.value.query.get("view") === "diff" ? "diff" : "history";
  const crumb = { href: hrefOf("/threads"), text: "Threads" };
  if (thread.data === undefined) {
    return <><PageHead title={id} crumb={crumb} />
      <div class="card">{thread.error === null ? <Loading label="Loading the thread" /> : <Failed error={thread.error} retry={thread.reload} />}</div></>;
  }
  const points = history.data ?? [];
  return (
    <>
      <PageHead title={id} crumb={crumb}
        note={<span class="number">{formatBytes(thread.data.bytes)} · {formatNumber(thread.data.entries)} files · snapshot {thread.data.head}</span>}>
        <ThreadActions id={id} reload={reload} />
      </PageHead>
      <Tabs label="Parts of the thread" selected={view} onSelect={(next) => setQuery({ view: next === "history" ? null : next })}
        tabs={[{ id: "history", text: "History" }, { id: "diff", text: "Changes" }, { id: "files", text: "Files" }]} />
      {history.error !== null && <div class="card"><Failed error={history.error} retry={history.reload} /></div>}
      {history.data === undefined && history.error === null && <div class="card"><Loading label="Loading the history" /></div>}
      {history.data !== undefined && view === "history" && <HistoryGraph id={id} points={points} head={thread.data.head} reload={reload} />}
      {history.data !== undefined && view === "diff" && <DiffView id={id} points={points} />}
      {history.data !== undefined && view === "files" && <FilesView id={id} points={points} head={thread.data.head} reload={reload} />}
      <OlderButton pages={history} text="Show older snapshots" />
    </>
  );
}

function ThreadActions({ id, reload }: { id: string; reload: () => void }) {
  const [asking, setAsking] = useState<"delete" | "fork" | null>(null);
  if (!mayDevelop.value) return <ExportLink id={id} />;
  return (
    <>
      <a class="button" href={hrefOf("/playground", { thread: id })}><Icon name="playground" /> Run in it</a>
      <a class="button" href={hrefOf("/executions", { thread_id: id })}><Icon name="executions" /> Executions</a>
      <ExportLink id={id} />
      <button type="button" class="button" onClick={() => setAsking("fork")}><Icon name="fork" /> Fork</button>
      <button type="button" class="button danger" onClick={() => setAsking("delete")}><Icon name="trash" /> Delete</button>
      {asking === "fork" && <ForkDialog id={id} at={null} onClose={() => setAsking(null)} />}
      {asking === "delete" && (
        <Confirm title={`Delete ${id}?`} action="Delete the thread" onClose={() => { setAsking(null); reload(); }}
          onConfirm={async () => {
            await unwrap(api.DELETE("/v1/threads/{thread_id}", { params: { path: { thread_id: id }, query: teamParam() } }));
            toast("Deleted");
            navigate(hrefOf("/threads"));
          }}>
          <p>Its home and all its snapshots are removed. This cannot be undone.</p>
        </Confirm>
      )}
    </>
  );
}

function ExportLink({ id }: { id: string }) {
  return <a class="button" href={`/v1/threads/${encodeURIComponent(id)}/export${teamSearch()}`} download={`${id}.tar`}><Icon name="download" /> Download</a>;
}

function ForkDialog({ id, at, onClose }: { id: string; at: number | null; onClose: () => void }) {
  const [name, setName] = useState(`${id}-copy`);
  const { busy, problems, submit } = useSubmit(["thread_id", "at"], async () => {
    await unwrap(api.POST("/v1/threads/{thread_id}/fork", {
      params: { path: { thread_id: id }, query: teamParam() }, body: { thread_id: name, ...(at === null ? {} : { at }) },
    }));
    onClose();
    toast(`Forked as ${name}`);
    navigate(hrefOf(`/threads/${name}`));
  });
  return (
    <Dialog title={at === null ? `Fork ${id}` : `Fork ${id} at snapshot ${at}`} onClose={onClose}>
      <form class="form" onSubmit={submit}>
        <TextField label="Name of the new thread" name="thread_id" required value={name} onChange={setName} problems={problems}
          hint="It begins with the same home and goes its own way from there." />
        <FormFoot problems={problems} busy={busy} action="Fork" onCancel={onClose} />
      </form>
    </Dialog>
  );
}

interface GraphProps {
  id: string;
  points: Point[];
  head: number;
  reload: () => void;
}
function HistoryGraph({ id, points, head, reload }: GraphProps) {
  const [asking, setAsking] = useState<{ what: "rollback" | "fork"; at: number } | null>(null);
  const rollBack = (to: number) => unwrap(api.POST("/v1/threads/{thread_id}/rollback", {
    params: { path: { thread_id: id }, query: teamParam() }, body: { to },
  }));
  return (
    <div class="card">
      <ol class="graph">
        {points.map((point) => (
          <li key={point.seq} class={`point ${point.kind} ${point.seq === head ? "head" : ""}`}>
            <span class="node" aria-hidden="true" />
            <div class="point-text">
              <span class="row">
                <strong class="number">{point.seq}</strong>
                <span class="badge">{point.kind}</span>
                {point.seq === head && <span class="badge good">current</span>}
                {point.trace_id !== null && point.trace_id !== undefined && <a class="mono cut" href={hrefOf(`/executions/${point.trace_id}`)}>{point.trace_id}</a>}
              </span>
              <span class="muted small">
                <Time at={point.created_at} form="short" /> · {formatNumber(point.files_changed)} changed · {formatBytes(point.bytes_added)}
              </span>
            </div>
            <div class="point-actions">
              <a class="button quiet small" href={hrefOf(`/threads/${id}`, { view: "diff", from: String(Math.max(point.seq - 1, 0)), to: String(point.seq) })}>Changes</a>
              <a class="button quiet small" href={hrefOf(`/threads/${id}`, { view: "files", at: String(point.seq) })}>Files</a>
              {mayDevelop.value && <button type="button" class="button quiet small" onClick={() => setAsking({ what: "fork", at: point.seq })}>Fork</button>}
              {mayDevelop.value && point.seq !== head && (
                <button type="button" class="button quiet small" onClick={() => setAsking({ what: "rollback", at: point.seq })}>Roll back</button>
              )}
            </div>
          </li>
        ))}
      </ol>
      {points.length === 0 && <p class="muted pad-16">This thread has no snapshot yet.</p>}
      {asking?.what === "fork" && <ForkDialog id={id} at={asking.at} onClose={() => setAsking(null)} />}
      {asking?.what === "rollback" && (
        <Confirm title={`Roll back to snapshot ${asking.at}?`} action="Roll back" onClose={() => setAsking(null)}
          onConfirm={async () => {
            await attempt(async () => { await rollBack(asking.at); reload(); }, `The home is as it was at snapshot ${asking.at}`);
          }}>
          <p>The home becomes what it was then. Later snapshots stay in the history.</p>
        </Confirm>
      )}
    </div>
  );
}
