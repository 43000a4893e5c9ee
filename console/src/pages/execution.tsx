// One execution: its code, output, phases, files, metadata, usage and network.
import { useEffect, useState } from "preact/hooks";
import { type Schemas, api, fetchRaw, readLines, unwrap } from "../api/client";
import { nameOf, teamSearch, useKeys, useSandboxes } from "../api/lists";
import { onExecution } from "../events";
import { hrefOf } from "../router";
import type { PageProps } from "../routes";
import { mayDevelop } from "../session";
import { Editor } from "../ui/editor";
import { Status, Time, Visible, formatBytes, formatMillis } from "../ui/format";
import { Icon } from "../ui/icons";
import { FinishedOutput, LiveOutput, type OutputPiece, appendPiece } from "../ui/output";
import { CopyButton, Failed, Loading, Metadata, PageHead, attempt } from "../ui/parts";
import { FilesCard } from "../ui/files";
import { useQuery } from "../ui/query";

type Execution = Schemas["ExecutionRecord"];

export default function ExecutionPage({ params }: PageProps) {
  const id = params.id ?? "";
  const record = useQuery(
    (signal) => unwrap(api.GET("/v1/executions/{trace_id}", { params: { path: { trace_id: id } }, signal })),
    [id],
  );
  useEffect(() => onExecution((event) => {
    if (event.trace_id === id && event.kind === "ended") record.reload();
  }), [id]);
  const crumb = { href: hrefOf("/executions"), text: "Executions" };
  if (record.data === undefined) {
    return (
      <>
        <PageHead title={<span class="mono">{id}</span>} crumb={crumb} />
        <div class="card">{record.error === null ? <Loading lines={10} label="Loading the execution" /> : <Failed error={record.error} retry={record.reload} />}</div>
      </>
    );
  }
  return <Detail record={record.data} reload={record.reload} crumb={crumb} />;
}

interface DetailProps {
  record: Execution;
  reload: () => void;
  crumb: { href: string; text: string };
}
function Detail({ record, reload, crumb }: DetailProps) {
  const running = record.status === "running";
  const cancel = () => attempt(
    () => unwrap(api.POST("/v1/executions/{trace_id}/cancel", { params: { path: { trace_id: record.trace_id } } })),
    "Cancelling",
  );
  return (
    <>
      <PageHead title={<span class="mono">{record.trace_id}</span>} crumb={crumb} note={<Status value={record.status} />}>
        <CopyButton text={record.trace_id} label="Copy the trace id" />
        {running && mayDevelop.value && <button type="button" class="button danger" onClick={cancel}><Icon name="stop" /> Cancel</button>}
        {mayDevelop.value && record.code !== null && record.code !== undefined && (
          <a class="button" href={hrefOf("/playground", { from: record.trace_id })}><Icon name="playground" /> Run again</a>
        )}
      </PageHead>
      {record.error !== null && record.error !== undefined && <div class="notice bad" role="alert"><span class="grow">{record.error}</span></div>}
      <div class="split">
        <div class="stack">
          <OutputCard record={record} onEnd={reload} />
          <CodeCard record={record} />
          <FilesCard traceId={record.trace_id} files={record.output_files ?? []} />
          <NetworkCard record={record} />
        </div>
        <div class="stack">
          <FactsCard record={record} />
          <PhasesCard record={record} />
        </div>
      </div>
    </>
  );
}

function OutputCard({ record, onEnd }: { record: Execution; onEnd: () => void }) {
  const running = record.status === "running";
  return (
    <section class="card" aria-label="Output">
      <header>
        <h2>Output</h2>
        {record.exit_code !== null && record.exit_code !== undefined && (
          <span class={`badge ${record.exit_code === 0 ? "" : "bad"}`}>exit {record.exit_code}</span>
        )}
        {record.output_truncated && <span class="badge warn">truncated</span>}
        {!running && <div class="actions"><CopyButton text={`${record.stdout ?? ""}${record.stderr ?? ""}`} label="Copy the output" /></div>}
      </header>
      {running ? <Tail id={record.trace_id} onEnd={onEnd} /> : <FinishedOutput record={record} />}
    </section>
  );
}

/** The output while the program runs. */
function Tail({ id, onEnd }: { id: string; onEnd: () => void }) {
  const [pieces, setPieces] = useState<OutputPiece[]>([]);
  const [problem, setProblem] = useState<Error | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    const follow = async () => {
      const response = await fetchRaw(`/v1/executions/${id}/output${teamSearch()}`, { signal: stop.signal });
      for await (const line of readLines(response)) {
        const event = line as { type: string; stream?: "stdout" | "stderr"; data?: string };
        if (event.type === "output") setPieces((old) => appendPiece(old, { stream: event.stream ?? "stdout", data: event.data ?? "" }));
        else if (event.type === "result") onEnd();
      }
    };
    follow().catch((error: Error) => {
      if (!stop.signal.aborted) setProblem(error);
    });
    return () => stop.abort();
  }, [id]);
  if (problem !== null) return <Failed error={problem} />;
  return <LiveOutput pieces={pieces} waiting="Waiting for output…" />;
}

function CodeCard({ record }: { record: Execution }) {
  return (
    <section class="card" aria-label="Code">
      <header>
        <h2>Code</h2>
        <span class="muted">{record.language ?? ""} · {formatBytes(record.code_bytes)}</span>
        {record.code !== null && record.code !== undefined && <div class="actions"><CopyButton text={record.code} label="Copy the code" /></div>}
      </header>
      {record.code === null || record.code === undefined ? (
        <p class="muted pad-16">The sandbox keeps only the digest of the code: <code class="wrap">{record.code_digest}</code></p>
      ) : (
        <Editor value={record.code} language={record.language ?? "text"} label="Code" readOnly maxHeight={560} />
      )}
    </section>
  );
}

function NetworkCard({ record }: { record: Execution }) {
  const network = record.network;
  if (network === null || network === undefined) return null;
  return (
    <section class="card" aria-label="Network">
      <header>
        <h2>Network</h2>
        <span class="muted">{network.connections} connections · {formatBytes(network.bytes_in)} in · {formatBytes(network.bytes_out)} out</span>
      </header>
      {network.denied.length === 0 ? <p class="muted pad-16">Nothing was denied.</p> : (
        <div class="table-wrap">
          <table class="table cards">
            <thead><tr><th scope="col">Denied destination</th><th scope="col">Protocol</th><th scope="col">Reason</th><th scope="col" class="end">Tried</th></tr></thead>
            <tbody>
              {network.denied.map((denied) => (
                <tr key={`${denied.host} ${denied.port} ${denied.protocol}`}>
                  <td class="mono wrap"><Visible text={`${denied.host}:${denied.port}`} /></td>
                  <td data-label="Protocol">{denied.protocol}</td>
                  <td data-label="Reason">{denied.reason.replaceAll("_", " ")}</td>
                  <td data-label="Tried" class="end number">{denied.count}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function FactsCard({ record }: { record: Execution }) {
  const sandboxes = useSandboxes();
  const keys = useKeys();
  const usage = record.usage;
  const metadata = record.metadata as Record<string, string>;
  return (
    <section class="card" aria-label="Facts">
      <header><h2>Facts</h2></header>
      <dl class="facts body">
        <dt>Started</dt><dd><Time at={record.created_at} /></dd>
        <dt>Duration</dt><dd class="number">{record.status === "running" ? "running" : formatMillis(record.duration_ms)}</dd>
        <dt>Sandbox</dt><dd>{nameOf(sandboxes.data, record.sandbox_id)}</dd>
        <dt>Key</dt><dd>{nameOf(keys.data, record.key_id)}</dd>
        {record.thread_id !== null && record.thread_id !== undefined && <><dt>Thread</dt><dd><a href={hrefOf(`/threads/${record.thread_id}`)}>{record.thread_id}</a></dd></>}
        <dt>Delivery</dt><dd>{record.delivery_mode}{record.webhook_delivery_status !== null && record.webhook_delivery_status !== undefined && <> <span class="badge">{record.webhook_delivery_status}</span></>}</dd>
        {record.webhook_url !== null && record.webhook_url !== undefined && <><dt>Webhook</dt><dd class="wrap"><Visible text={record.webhook_url} /></dd></>}
        {usage !== null && usage !== undefined && (
          <>
            <dt>CPU</dt><dd class="number">{formatMillis(usage.cpu_ms)}</dd>
            <dt>Peak memory</dt><dd class="number">{formatBytes(usage.peak_memory_bytes)}</dd>
            <dt>Credits</dt><dd class="number">{usage.credits}</dd>
          </>
        )}
        {record.mounts?.map((mount) => (
          <>
            <dt key={mount.name}>/data/{mount.name}</dt>
            <dd class="number">{formatBytes(mount.bytes_read)} read{mount.read_only ? "" : `, ${formatBytes(mount.bytes_written)} written`}</dd>
          </>
        ))}
        {Object.entries(record.tool_calls_details ?? {}).map(([name, use]) => (
          <><dt key={name}>{name.replaceAll("_", " ")}</dt><dd class="number">{use.invocation} {use.invocation === 1 ? "call" : "calls"}, ${use.cost_usd}</dd></>
        ))}
        {record.decision !== null && record.decision !== undefined && <><dt>Allowed by</dt><dd><Visible text={record.decision.by} /></dd></>}
        {Object.keys(metadata).length > 0 && <><dt>Metadata</dt><dd class="row"><MetadataLinks values={metadata} /></dd></>}
      </dl>
    </section>
  );
}

/** Metadata; each leads to the executions that have it as well. */
function MetadataLinks({ values }: { values: Record<string, string> }) {
  return (
    <>
      {Object.entries(values).map(([name, value]) => (
        <a key={name} href={hrefOf("/executions", { [`metadata.${name}`]: value })} title="Executions with this">
          <Metadata values={{ [name]: value }} />
        </a>
      ))}
    </>
  );
}

function PhasesCard({ record }: { record: Execution }) {
  const phases = record.phases ?? [];
  if (phases.length === 0) return null;
  const end = Math.max(...phases.map((phase) => phase.start_ms + phase.duration_ms), 0.001);
  return (
    <section class="card" aria-label="Timeline">
      <header><h2>Timeline</h2><span class="muted number">{formatMillis(end)}</span></header>
      <ol class="phases body">
        {phases.map((phase) => (
          <li key={phase.name}>
            <span class="phase-name">{phase.name}</span>
            <span class="phase-track">
              <i style={{ marginLeft: `${(phase.start_ms / end) * 100}%`, width: `max(2px, ${(phase.duration_ms / end) * 100}%)` }} />
            </span>
            <span class="number faint small">{formatMillis(phase.duration_ms)}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}
