// A file of a program, shown without running anything in it: images from memory, tables, text.
import { useEffect, useState } from "preact/hooks";
import { fetchRaw } from "../api/client";
import { Editor } from "./editor";
import { formatBytes } from "./format";
import { Failed, Loading } from "./parts";
import { useQuery } from "./query";

const IMAGES: Record<string, string> = {
  png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp",
  svg: "image/svg+xml", bmp: "image/bmp", avif: "image/avif", ico: "image/x-icon",
};
const LANGUAGE_OF: Record<string, string> = {
  py: "python", js: "node", mjs: "node", cjs: "node", ts: "deno", sh: "bash", rb: "ruby", pl: "perl",
  php: "php", lua: "lua", go: "go", java: "java", jl: "julia", r: "r", json: "json", tcl: "tcl",
};
const MOST_IMAGE = 16 * 1024 * 1024;
const MOST_TEXT = 512 * 1024;
const MOST_ROWS = 500;

export function extensionOf(name: string): string {
  const at = name.lastIndexOf(".");
  return at < 0 ? "" : name.slice(at + 1).toLowerCase();
}

export function isImage(name: string): boolean {
  return IMAGES[extensionOf(name)] !== undefined;
}

/** An image that a program wrote. The browser runs no script of an image, also not of SVG. */
export function ImagePreview({ address, name }: { address: string; name: string }) {
  const [url, setUrl] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    let made: string | null = null;
    let gone = false;
    fetchRaw(address).then(async (response) => {
      const bytes = await response.arrayBuffer();
      if (gone) return;
      made = URL.createObjectURL(new Blob([bytes], { type: IMAGES[extensionOf(name)] ?? "image/png" }));
      setUrl(made);
    }).catch(setError);
    return () => {
      gone = true;
      if (made !== null) URL.revokeObjectURL(made);
    };
  }, [address]);
  if (error !== null) return <Failed error={error} />;
  if (url === null) return <Loading lines={2} label={`Loading ${name}`} />;
  return <img class="plot" src={url} alt={name} />;
}

interface PreviewProps {
  address: string;
  name: string;
  size: number;
}
export function FilePreview({ address, name, size }: PreviewProps) {
  const extension = extensionOf(name);
  if (IMAGES[extension] !== undefined && size <= MOST_IMAGE) return <ImagePreview address={address} name={name} />;
  return <TextPreview address={address} name={name} size={size} />;
}

/** The beginning of a file as text, or null if it is not text. */
async function loadText(address: string, size: number): Promise<string | null> {
  const headers: Record<string, string> = size > MOST_TEXT ? { Range: `bytes=0-${MOST_TEXT - 1}` } : {};
  const response = await fetchRaw(address, { headers });
  const bytes = new Uint8Array(await response.arrayBuffer());
  if (bytes.subarray(0, 8192).includes(0)) return null;
  return new TextDecoder().decode(bytes);
}

function TextPreview({ address, name, size }: PreviewProps) {
  const text = useQuery(() => loadText(address, size), [address]);
  const extension = extensionOf(name);
  if (text.error !== null) return <Failed error={text.error} retry={text.reload} />;
  if (text.data === undefined) return <Loading lines={4} label={`Loading ${name}`} />;
  if (text.data === null) return <p class="muted pad-16">This file is not text. Download it to look inside ({formatBytes(size)}).</p>;
  const cut = size > MOST_TEXT && <p class="faint small pad-16">Only the first {formatBytes(MOST_TEXT)} of {formatBytes(size)} are shown.</p>;
  if (extension === "csv" || extension === "tsv") {
    return <>{cut}<CsvTable text={text.data} separator={extension === "tsv" ? "\t" : ","} name={name} /></>;
  }
  const shown = extension === "json" && size <= MOST_TEXT ? formatJson(text.data) : text.data;
  return <>{cut}<Editor key={address} value={shown} language={LANGUAGE_OF[extension] ?? "text"} label={name} readOnly maxHeight={480} /></>;
}

function formatJson(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Splits CSV with quoted fields. */
export function parseCsv(text: string, separator: string, most: number): string[][] {
  const rows: string[][] = [];
  let row: string[] = [];
  let field = "";
  let quoted = false;
  for (let at = 0; at < text.length && rows.length < most; at++) {
    const char = text[at];
    if (quoted) {
      if (char !== '"') field += char;
      else if (text[at + 1] === '"') {
        field += '"';
        at++;
      } else quoted = false;
    } else if (char === '"' && field === "") quoted = true;
    else if (char === separator) {
      row.push(field);
      field = "";
    } else if (char === "\n" || char === "\r") {
      if (char === "\r" && text[at + 1] === "\n") at++;
      rows.push([...row, field]);
      row = [];
      field = "";
    } else field += char;
  }
  if (rows.length < most && (field !== "" || row.length > 0)) rows.push([...row, field]);
  return rows;
}

function CsvTable({ text, separator, name }: { text: string; separator: string; name: string }) {
  const [head, ...rows] = parseCsv(text, separator, MOST_ROWS + 1);
  if (head === undefined) return <p class="muted pad-16">The file is empty.</p>;
  return (
    <div class="table-wrap preview-table" tabIndex={0} role="region" aria-label={name}>
      <table class="table mono">
        <thead><tr>{head.map((cell, at) => <th key={at} scope="col">{cell}</th>)}</tr></thead>
        <tbody>
          {rows.map((row, at) => <tr key={at}>{row.map((cell, index) => <td key={index}>{cell}</td>)}</tr>)}
        </tbody>
      </table>
      {rows.length === MOST_ROWS && <p class="faint small pad-16">The first {MOST_ROWS} rows are shown.</p>}
    </div>
  );
}
