// One approval: the whole call, what changed in the home, and the answer.
import { useState } from "preact/hooks";
import { type Schemas, api, unwrap } from "../api/client";
import { nameOf, useKeys } from "../api/lists";
import { pendingApprovals } from "../events";
import { hrefOf } from "../router";
import type { PageProps } from "../routes";
import { mayOwn } from "../session";
import { TextField, FormFoot, useSubmit } from "../ui/form";
import { Status, Time, Visible, formatBytes } from "../ui/format";
import { Icon } from "../ui/icons";
import { Dialog, Failed, Loading, PageHead, attempt, toast } from "../ui/parts";
import { useQuery, useReload } from "../ui/query";

type Approval = Schemas["ApprovalRecord"];

export default function ApprovalPage({ params }: PageProps) {
  const id = params.id ?? "";
  const record = useQuery((signal) => unwrap(api.GET("/v1/admin/approvals/{id}", { params: { path: { id } }, signal })), [id]);
  // Somebody else may have answered.
  useReload(pendingApprovals.value, record.reload);
  const crumb = { href: hrefOf("/approvals"), text: "Approvals" };
  if (record.data === undefined) {
    return <><PageHead title={id} crumb={crumb} />
      <div class="card">{record.error === null ? <Loading label="Loading the approval" /> : <Failed error={record.error} retry={record.reload} />}</div></>;
  }
  return <Detail record={record.data} reload={record.reload} crumb={crumb} />;
}

function Detail({ record, reload, crumb }: { record: Approval; reload: () => void; crumb: { href: string; text: string } }) {
  const [denying, setDenying] = useState(false);
  const keys = useKeys();
  const approve = () => attempt(async () => {
    await unwrap(api.POST("/v1/admin/approvals/{id}/approve", { params: { path: { id: record.id } }, body: {} }));
    reload();
  }, "Approved");
  return (
    <>
      <PageHead title={record.tool} crumb={crumb} note={<Status value={record.state} />}>
        {record.state === "pending" && mayOwn.value && (
          <>
            <button type="button" class="button danger" onClick={() => setDenying(true)}><Icon name="close" /> Deny</button>
            <button type="button" class="button primary" onClick={approve}><Icon name="check" /> Approve this call</button>
          </>
        )}
      </PageHead>
      {record.reason !== null && record.reason !== undefined && <div class="notice warn"><span class="grow"><Visible text={record.reason} /></span></div>}
      <div class="split">
        <div class="stack">
          <Arguments record={record} />
          {record.changes !== null && record.changes !== undefined && <Changes changes={record.changes} />}
        </div>
        <section class="card" aria-label="Facts">
          <header><h2>Facts</h2></header>
          <dl class="facts body">
            <dt>Asked</dt><dd><Time at={record.created_at} /></dd>
            <dt>{record.state === "pending" ? "Answer until" : "Valid until"}</dt><dd><Time at={record.expires_at} /></dd>
            <dt>Agent's key</dt><dd>{nameOf(keys.data, record.key_id)}</dd>
            {record.thread_id !== null && record.thread_id !== undefined && <><dt>Thread</dt><dd><a href={hrefOf(`/threads/${record.thread_id}`)}>{record.thread_id}</a></dd></>}
            {record.decided_by !== null && record.decided_by !== undefined && <><dt>Answered by</dt><dd><Visible text={record.decided_by} /></dd></>}
            <dt>Digest</dt><dd class="mono small">{record.arguments_digest}</dd>
          </dl>
        </section>
      </div>
      {denying && <DenyDialog id={record.id} onClose={() => setDenying(false)} onDone={() => { setDenying(false); reload(); }} />}
    </>
  );
}

function DenyDialog({ id, onClose, onDone }: { id: string; onClose: () => void; onDone: () => void }) {
  const [reason, setReason] = useState("");
  const { busy, problems, submit } = useSubmit(["reason"], async () => {
    await unwrap(api.POST("/v1/admin/approvals/{id}/deny", { params: { path: { id } }, body: reason === "" ? {} : { reason } }));
    toast("Denied");
    onDone();
  });
  return (
    <Dialog title="Deny this call" onClose={onClose}>
      <form class="form" onSubmit={submit}>
        <TextField label="Reason" name="reason" rows={2} value={reason} onChange={setReason} problems={problems} hint="The agent can read it." />
        <FormFoot problems={problems} busy={busy} action="Deny" onCancel={onClose} />
      </form>
    </Dialog>
  );
}

function parseArguments(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

/** Every argument in full: texts as they are, with hidden characters made visible. */
function Arguments({ record }: { record: Approval }) {
  if (record.arguments === null || record.arguments === undefined) {
    return <section class="card"><header><h2>Call</h2></header><p class="muted pad-16">The arguments were deleted when the call was settled. Their digest stays.</p></section>;
  }
  const parsed = parseArguments(record.arguments);
  if (parsed === null) return <section class="card"><header><h2>Call</h2></header><pre class="output" tabIndex={0}><Visible text={record.arguments} /></pre></section>;
  const order = (name: string) => (name === "code" ? 0 : name === "files" ? 2 : 1);
  const entries = Object.entries(parsed).sort(([a], [b]) => order(a) - order(b));
  return (
    <>
      {entries.map(([name, value]) => (
        <section class="card" key={name}>
          <header><h2 class="mono">{name}</h2></header>
          {name === "files" && Array.isArray(value) ? value.map((file, at) => <SentFile key={at} file={file} />) : (
            <pre class="output" tabIndex={0} role="region" aria-label={name}>
              <Visible text={typeof value === "string" ? value : JSON.stringify(value, null, 2)} />
            </pre>
          )}
        </section>
      ))}
    </>
  );
}

/** The text of bytes in base64; null if they are none, or no base64. */
function decodeText(base64: string): string | null {
  try {
    const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
    return bytes.includes(0) ? null : new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}

/** A file that comes with the call: its text where it is text, and otherwise what was sent. */
function SentFile({ file }: { file: unknown }) {
  const { name, content, content_base64: base64, ...rest } = (typeof file === "object" && file !== null ? file : { name: file }) as Record<string, unknown>;
  const decoded = typeof content === "string" ? content : typeof base64 === "string" ? decodeText(base64) : null;
  const shown = decoded ?? JSON.stringify(content ?? base64 ?? null);
  const title = typeof name === "string" ? name : JSON.stringify(name ?? null);
  return (
    <>
      <h3 class="output-title"><span class="mono"><Visible text={title} /></span>{decoded === null && <span class="badge warn">not text, as it was sent</span>}
        {Object.keys(rest).length > 0 && <code><Visible text={JSON.stringify(rest)} /></code>}</h3>
      <pre class="output" tabIndex={0} role="region" aria-label={title}><Visible text={shown} /></pre>
    </>
  );
}

function Changes({ changes }: { changes: Schemas["HomeChangesRecord"] }) {
  return (
    <section class="card" aria-label="Changes of the home">
      <header><h2>{changes.since === null || changes.since === undefined ? "The whole home" : "Changed in the home since the last approval"}</h2></header>
      {changes.note !== null && changes.note !== undefined && <p class="pad-16 muted"><Visible text={changes.note} /></p>}
      {changes.paths.length === 0 && <p class="muted pad-16">Nothing.</p>}
      <ul class="files">
        {changes.paths.map((each) => (
          <li key={each.path}>
            <details class="change">
              <summary class="file-line">
                <span class={`badge ${each.change === "added" ? "good" : each.change === "removed" ? "bad" : "warn"}`}>{each.change}</span>
                <span class="mono wrap grow"><Visible text={each.path} /></span>
                {each.warning !== null && each.warning !== undefined && <span class="badge bad">runs by itself</span>}
                <span class="faint number">{formatBytes(each.size)}</span>
              </summary>
              {each.warning !== null && each.warning !== undefined && <p class="problem pad-16"><Visible text={each.warning} /></p>}
              {each.content !== null && each.content !== undefined
                ? <pre class="output" tabIndex={0} role="region" aria-label={each.path}><Visible text={each.content} /></pre>
                : <p class="muted pad-16">{each.binary ? "Binary, not shown." : "Not shown."} {each.target !== null && each.target !== undefined && <>Link to <code><Visible text={each.target} /></code>. </>}<code>{each.sha256}</code></p>}
            </details>
          </li>
        ))}
      </ul>
      {changes.omitted > 0 && <p class="problem pad-16">{changes.omitted} more paths are not listed.</p>}
    </section>
  );
}
