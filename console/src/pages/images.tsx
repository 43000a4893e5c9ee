// Images: root file systems with interpreters, pulled from registries.
import { useState } from "preact/hooks";
import { ApiFailure, type Schemas, api, fetchRaw, readLines, unwrap } from "../api/client";
import { isOperator } from "../session";
import { CheckField, FormFoot, TextField, useSubmit } from "../ui/form";
import { Time, Visible, formatBytes } from "../ui/format";
import { Icon } from "../ui/icons";
import { List } from "../ui/list";
import { Confirm, Dialog, Failed, Loading, PageHead, attempt, toast } from "../ui/parts";
import { useQuery } from "../ui/query";

type Summary = Schemas["ImageSummary"];

export default function ImagesPage() {
  const list = useQuery(async () => (await unwrap(api.GET("/v1/admin/images"))).images, []);
  const [pulling, setPulling] = useState(false);
  const [shown, setShown] = useState<string | null>(null);
  const [removing, setRemoving] = useState<Summary | null>(null);
  const pull = isOperator.value && (
    <button type="button" class="button primary" onClick={() => setPulling(true)}><Icon name="download" /> Pull an image</button>
  );
  const prune = () => attempt(async () => {
    const gone = await unwrap(api.POST("/v1/admin/images/prune"));
    toast(`Removed ${gone.removed.length} images, ${formatBytes(gone.freed_bytes)}`);
    list.reload();
  });
  return (
    <>
      <PageHead title="Images">
        {isOperator.value && (list.data?.length ?? 0) > 0 && <button type="button" class="button" onClick={prune}>Remove unused</button>}
        {pull}
      </PageHead>
      <List label="Images" query={list} keyOf={(item) => item.digest}
        empty={{ icon: "images", title: "There is no image yet", text: "Sandboxes use the interpreters of this host until an image is pulled or imported.", action: pull }}
        columns={[
          { title: "Name", primary: true, cell: (item) => <button type="button" class="link wrap" onClick={() => setShown(item.digest)}>{item.names.join(", ") || item.digest.slice(0, 19)}</button> },
          { title: "Languages", cell: (item) => <span class="row">{item.languages.map((each) => <span class="tag" key={each}><span>{each}</span></span>)}</span> },
          { title: "Platform", cell: (item) => item.platform },
          { title: "Size", end: true, cell: (item) => formatBytes(item.file_bytes) },
          { title: "Used by", cell: (item) => <span class="wrap">{item.used_by.join(", ") || "–"}</span> },
          { title: "Added", cell: (item) => <Time at={item.added_at} form="short" /> },
        ]}
        {...(isOperator.value ? {
          actions: (item: Summary) => (
            <button type="button" class="button quiet icon small" aria-label={`Remove ${item.names[0] ?? item.digest}`} onClick={() => setRemoving(item)}><Icon name="trash" /></button>
          ),
        } : {})} />
      {pulling && <PullDialog onClose={() => { setPulling(false); list.reload(); }} />}
      {shown !== null && <ImageDialog digest={shown} onClose={() => setShown(null)} />}
      {removing !== null && (
        <Confirm title="Remove this image?" action="Remove the image" onClose={() => setRemoving(null)}
          onConfirm={async () => {
            await unwrap(api.DELETE("/v1/admin/images/{id}", { params: { path: { id: removing.digest } } }));
            list.reload();
          }}>
          <p class="mono">{removing.names.join(", ") || removing.digest}</p>
        </Confirm>
      )}
    </>
  );
}

type PullEvent =
  | { event: "progress"; phase: string; layers_done: number; layers: number; bytes_done: number; bytes: number; trying?: string }
  | { event: "image"; image: Schemas["ImageDetail"] }
  | { event: "error"; error: string; message: string };
type Progress = Extract<PullEvent, { event: "progress" }>;

function PullDialog({ onClose }: { onClose: () => void }) {
  const [reference, setReference] = useState("");
  const [username, setUsername] = useState("");
  const [password, setPassword] = useState("");
  const [plain, setPlain] = useState(false);
  const [progress, setProgress] = useState<Progress | null>(null);
  const [done, setDone] = useState<Schemas["ImageDetail"] | null>(null);
  const { busy, problems, submit } = useSubmit(["reference", "username", "password"], async () => {
    const body: Schemas["PullImage"] = { reference: reference.trim(), plain_http: plain, ...(username === "" ? {} : { username, password }) };
    try {
      const response = await fetchRaw("/v1/admin/images/pull", {
        method: "POST", headers: { "Content-Type": "application/json", Accept: "application/x-ndjson" }, body: JSON.stringify(body),
      });
      for await (const line of readLines(response)) {
        const event = line as PullEvent;
        if (event.event === "progress") setProgress(event);
        else if (event.event === "image") setDone(event.image);
        else throw new ApiFailure(400, event.error, event.message);
      }
    } catch (failure) {
      // What the server refuses before it pulls, it refuses for the reference.
      if (!(failure instanceof ApiFailure) || failure.code !== "validation_error") throw failure;
      throw new ApiFailure(failure.status, failure.code, `reference: ${failure.message}`);
    } finally {
      setProgress(null);
    }
  });
  if (done !== null) {
    return (
      <Dialog title="The image is here" onClose={onClose}>
        <div class="stack">
          <p class="wrap"><strong>{done.names.join(", ") || done.digest}</strong> has {done.languages.join(", ") || "no interpreter that can be used"}.</p>
          {done.notes.map((note) => <div class="notice warn" key={note}><Visible text={note} /></div>)}
          <div class="form-foot"><button type="button" class="button primary" onClick={onClose}>Done</button></div>
        </div>
      </Dialog>
    );
  }
  return (
    <Dialog title="Pull an image" onClose={onClose}>
      <form class="form" onSubmit={submit}>
        <TextField label="Image" name="reference" mono required value={reference} onChange={setReference} problems={problems} disabled={busy}
          placeholder="registry.example.com/team/python:3.14" />
        <details>
          <summary>Registry account</summary>
          <div class="form">
            <div class="form-row">
              <TextField label="Name" name="username" value={username} onChange={setUsername} problems={problems} disabled={busy} />
              <TextField label="Password or token" name="password" type="password" value={password} onChange={setPassword} problems={problems} disabled={busy} />
            </div>
            <CheckField label="Plain HTTP" hint="Only for a registry on the server's own host." checked={plain} onChange={setPlain} disabled={busy} />
          </div>
        </details>
        {busy && <PullProgress progress={progress} />}
        <FormFoot problems={problems} busy={busy} action="Pull" onCancel={onClose} />
      </form>
    </Dialog>
  );
}

function PullProgress({ progress }: { progress: Progress | null }) {
  const bytes = progress?.bytes ?? 0;
  const text = progress === null ? "starting" : progress.phase + (progress.trying === undefined ? "" : ` ${progress.trying}`);
  return (
    <div class="field" role="status" aria-live="polite">
      <span class="row"><strong>{text}</strong>
        {progress !== null && bytes > 0 && <span class="muted number">{formatBytes(progress.bytes_done)} of {formatBytes(bytes)} · layer {progress.layers_done} of {progress.layers}</span>}
      </span>
      {bytes > 0 ? <progress aria-label="Progress of the pull" max={bytes} value={progress?.bytes_done ?? 0} /> : <progress aria-label="Progress of the pull" />}
    </div>
  );
}

function ImageDialog({ digest, onClose }: { digest: string; onClose: () => void }) {
  const image = useQuery(() => unwrap(api.GET("/v1/admin/images/{id}", { params: { path: { id: digest } } })), [digest]);
  const data = image.data;
  return (
    <Dialog title={data?.names[0] ?? "Image"} wide onClose={onClose}>
      {image.error !== null && <Failed error={image.error} retry={image.reload} />}
      {data === undefined && image.error === null && <Loading />}
      {data !== undefined && (
        <div class="stack">
          <dl class="facts">
            <dt>Digest</dt><dd class="mono">{data.digest}</dd>
            <dt>Size</dt><dd>{formatBytes(data.file_bytes)} in {data.layers.length} layers, {formatBytes(data.stored_bytes)} stored</dd>
            <dt>Used by</dt><dd>{data.used_by.join(", ") || "no sandbox"}</dd>
          </dl>
          <h3>Interpreters</h3>
          <ul class="stack tight">
            {data.interpreters.map((each) => (
              <li key={each.path}><strong>{each.language}</strong> {each.version ?? ""} <code>{each.path}</code> {each.start !== null && each.start !== undefined && <span class="badge">{each.start}</span>}
                {each.reason !== null && each.reason !== undefined && <div class="muted small"><Visible text={each.reason} /></div>}</li>
            ))}
            {data.refused_interpreters.map((each) => <li key={each.path} class="muted">{each.language} <code>{each.path}</code>: <Visible text={each.reason} /></li>)}
          </ul>
          {Object.keys(data.labels).length > 0 && (
            <><h3>Labels</h3>
              <dl class="facts small">{Object.entries(data.labels as Record<string, string>).map(([name, value]) => (
                <><dt key={name} class="mono wrap"><Visible text={name} /></dt><dd class="mono"><Visible text={value} /></dd></>
              ))}</dl></>
          )}
          {data.notes.map((note) => <div class="notice warn" key={note}><Visible text={note} /></div>)}
        </div>
      )}
    </Dialog>
  );
}
