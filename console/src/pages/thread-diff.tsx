// What changed between two snapshots, with the contents of a file side by side in lines.
import { useState } from "preact/hooks";
import { type Schemas, api, encodePath, fetchRaw, unwrap } from "../api/client";
import { teamParam, teamSearch } from "../api/lists";
import { place, setQuery } from "../router";
import { Visible } from "../ui/format";
import { Failed, Loading } from "../ui/parts";
import { extensionOf, isImage, ImagePreview } from "../ui/preview";
import { useQuery } from "../ui/query";
import { diffLines } from "../ui/diff";

const MOST_BYTES = 256 * 1024;

export function fileAddress(id: string, path: string, at: number): string {
  return `/v1/threads/${encodeURIComponent(id)}/files/${encodePath(path)}${teamSearch({ at: String(at) })}`;
}

export function DiffView({ id, points }: { id: string; points: Schemas["PointRecord"][] }) {
  const query = place.value.query;
  const newest = points[0]?.seq ?? 0;
  const to = Number(query.get("to") ?? newest);
  const from = Number(query.get("from") ?? Math.max(to - 1, 0));
  const diff = useQuery(
    (signal) => unwrap(api.GET("/v1/threads/{thread_id}/diff", {
      params: { path: { thread_id: id }, query: { ...teamParam(), from: String(from), to: String(to) } }, signal,
    })),
    [id, from, to],
  );
  const [open, setOpen] = useState<string | null>(null);
  const numbers = [...new Set([0, ...points.map((point) => point.seq), from, to])].sort((a, b) => b - a);
  const pick = (name: "from" | "to", value: number) => (
    <select class="select pick-number" aria-label={name === "from" ? "Older snapshot" : "Newer snapshot"} value={String(value)}
      onChange={(event) => setQuery({ [name]: event.currentTarget.value })}>
      {numbers.map((seq) => <option key={seq} value={String(seq)} selected={seq === value}>{seq === 0 ? "0 (empty)" : seq}</option>)}
    </select>
  );
  const rows: [string, "added" | "changed" | "removed"][] = diff.data === undefined ? [] : [
    ...diff.data.added.map((path): [string, "added"] => [path, "added"]),
    ...diff.data.changed.map((path): [string, "changed"] => [path, "changed"]),
    ...diff.data.removed.map((path): [string, "removed"] => [path, "removed"]),
  ].sort(([a], [b]) => a.localeCompare(b)) as [string, "added" | "changed" | "removed"][];
  return (
    <div class="card">
      <header><h2>Between</h2>{pick("from", from)}<span class="muted">and</span>{pick("to", to)}</header>
      {diff.error !== null && <Failed error={diff.error} retry={diff.reload} />}
      {diff.data === undefined && diff.error === null && <Loading label="Comparing" />}
      {diff.data !== undefined && rows.length === 0 && <p class="muted pad-16">Nothing differs between these two.</p>}
      <ul class="files">
        {rows.map(([path, change]) => (
          <li key={path}>
            <div class="file-line">
              <button type="button" class="link cut" aria-expanded={open === path} onClick={() => setOpen(open === path ? null : path)}>
                <span class={`badge ${change === "added" ? "good" : change === "removed" ? "bad" : "warn"}`}>{change}</span>
                <span class="mono cut"><Visible text={path} /></span>
              </button>
            </div>
            {open === path && <FileDiff id={id} path={path} change={change} from={from} to={to} />}
          </li>
        ))}
      </ul>
      {(diff.data?.omitted ?? 0) > 0 && <p class="faint small pad-16">{diff.data?.omitted} more paths are not listed.</p>}
    </div>
  );
}

interface FileDiffProps {
  id: string;
  path: string;
  change: "added" | "changed" | "removed";
  from: number;
  to: number;
}

/** The text of a file at a snapshot; null if it is no text, empty if it is not there. */
async function loadSide(id: string, path: string, at: number): Promise<string | null> {
  const response = await fetchRaw(fileAddress(id, path, at), { headers: { Range: `bytes=0-${MOST_BYTES - 1}` } });
  const bytes = new Uint8Array(await response.arrayBuffer());
  return bytes.subarray(0, 8192).includes(0) ? null : new TextDecoder().decode(bytes);
}

function FileDiff({ id, path, change, from, to }: FileDiffProps) {
  const isPicture = isImage(path) && extensionOf(path) !== "svg";
  const sides = useQuery(async () => {
    if (isPicture) return { before: "", after: "" };
    const before = change === "added" ? "" : await loadSide(id, path, from);
    const after = change === "removed" ? "" : await loadSide(id, path, to);
    return { before, after };
  }, [id, path, from, to]);
  if (isPicture) return <ImagePreview address={fileAddress(id, path, change === "removed" ? from : to)} name={path} />;
  if (sides.error !== null) return <p class="muted pad-16">{sides.error.message}</p>;
  if (sides.data === undefined) return <Loading lines={3} label="Loading the contents" />;
  if (sides.data.before === null || sides.data.after === null) return <p class="muted pad-16">This file is not text.</p>;
  const lines = diffLines(sides.data.before, sides.data.after);
  return (
    <pre class="output diff" tabIndex={0} role="region" aria-label={`Changes of ${path}`}>
      {lines.map((line, at) => (
        <span key={at} class={`diff-line ${line.kind}`}>
          <span class="diff-sign">{line.kind === "added" ? "+" : line.kind === "removed" ? "−" : line.kind === "gap" ? "⋯" : " "}</span>
          <Visible text={line.text} />{"\n"}
        </span>
      ))}
    </pre>
  );
}
