// The files of a thread at a snapshot: browse, look, download, upload.
import { useRef, useState } from "preact/hooks";
import { type Schemas, api, encodePath, fetchRaw, unwrap } from "../api/client";
import { teamParam, teamSearch } from "../api/lists";
import { place, setQuery } from "../router";
import { mayDevelop } from "../session";
import { Time, Visible, formatBytes } from "../ui/format";
import { Icon } from "../ui/icons";
import { Empty, Failed, Loading, attempt } from "../ui/parts";
import { FilePreview } from "../ui/preview";
import { useQuery } from "../ui/query";
import { fileAddress } from "./thread-diff";

interface FilesProps {
  id: string;
  points: Schemas["PointRecord"][];
  head: number;
  reload: () => void;
}
export function FilesView({ id, points, head, reload }: FilesProps) {
  const at = Number(place.value.query.get("at") ?? head);
  const files = useQuery(
    (signal) => unwrap(api.GET("/v1/threads/{thread_id}/files", {
      params: { path: { thread_id: id }, query: { ...teamParam(), at: String(at), limit: 2000 } }, signal,
    })),
    [id, at],
  );
  const [open, setOpen] = useState<string | null>(null);
  const [text, setText] = useState("");
  const shown = files.data?.files.filter((file) => file.path.toLowerCase().includes(text.toLowerCase()));
  return (
    <div class="card">
      <header>
        <h2>Files at</h2>
        <select class="select pick-number" aria-label="Snapshot" value={String(at)} onChange={(event) => setQuery({ at: event.currentTarget.value })}>
          {points.map((point) => <option key={point.seq} value={String(point.seq)} selected={point.seq === at}>{point.seq === head ? `${point.seq} (current)` : point.seq}</option>)}
        </select>
        <input class="input find-file" type="search" data-search aria-label="Find a file" placeholder="Find a file  /" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        {mayDevelop.value && <div class="actions"><UploadButton id={id} onDone={() => { setQuery({ at: null }); reload(); files.reload(); }} /></div>}
      </header>
      {files.error !== null && <Failed error={files.error} retry={files.reload} />}
      {files.data === undefined && files.error === null && <Loading label="Loading files" />}
      {files.data?.files.length === 0 && <Empty icon="file" title="The home is empty at this snapshot"><p>Upload a file, or run a program that writes one.</p></Empty>}
      <ul class="files">
        {shown?.map((file) => (
          <li key={file.path}>
            <div class="file-line">
              <button type="button" class="link cut" aria-expanded={open === file.path} onClick={() => setOpen(open === file.path ? null : file.path)}>
                <Icon name="file" /> <span class="mono cut"><Visible text={file.path} /></span>
              </button>
              <span class="faint file-time"><Time at={file.modified} form="short" /></span>
              <span class="faint number">{formatBytes(file.size)}</span>
              <a class="button quiet icon small" href={fileAddress(id, file.path, at)} download={file.path.split("/").pop()} aria-label={`Download ${file.path}`}><Icon name="download" /></a>
            </div>
            {open === file.path && <FilePreview address={fileAddress(id, file.path, at)} name={file.path} size={file.size} />}
          </li>
        ))}
      </ul>
      {files.data?.next !== null && files.data?.next !== undefined && <p class="faint small pad-16">Only the first {files.data.files.length} files are listed.</p>}
    </div>
  );
}

function UploadButton({ id, onDone }: { id: string; onDone: () => void }) {
  const picker = useRef<HTMLInputElement>(null);
  const [busy, setBusy] = useState(false);
  const upload = async (list: FileList | null) => {
    setBusy(true);
    for (const file of list ?? []) {
      const address = `/v1/threads/${encodeURIComponent(id)}/files/${encodePath(file.name)}${teamSearch()}`;
      const done = await attempt(
        () => fetchRaw(address, { method: "PUT", body: file, headers: { "Content-Type": "application/octet-stream" } }),
        `Uploaded ${file.name}`,
      );
      if (!done) break;
    }
    setBusy(false);
    onDone();
  };
  return (
    <>
      <button type="button" class="button small" disabled={busy} onClick={() => picker.current?.click()}><Icon name="upload" /> Upload</button>
      <input ref={picker} type="file" multiple hidden aria-label="Files to upload" onChange={(event) => {
        upload(event.currentTarget.files);
      }} />
    </>
  );
}
