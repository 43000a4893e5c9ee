// What a program wrote: finished, or line by line while it runs.
import { useEffect, useRef } from "preact/hooks";
import type { Schemas } from "../api/client";
import { Ansi } from "./ansi";
import { formatBytes } from "./format";

export interface OutputPiece {
  stream: "stdout" | "stderr";
  data: string;
}

// More than this is not kept in the page; the record has the rest.
const MOST_SHOWN = 2_000_000;

/** Joins neighbours of one stream, so that escape sequences across events work. */
export function appendPiece(pieces: OutputPiece[], piece: OutputPiece): OutputPiece[] {
  const last = pieces[pieces.length - 1];
  if (last !== undefined && last.stream === piece.stream && last.data.length < 16_384) {
    return [...pieces.slice(0, -1), { stream: last.stream, data: last.data + piece.data }];
  }
  const next = [...pieces, piece];
  let total = next.reduce((sum, each) => sum + each.data.length, 0);
  while (total > MOST_SHOWN && next.length > 1) total -= next.shift()?.data.length ?? 0;
  return next;
}

/** Output in the order of its events; follows the end unless the reader scrolled up. */
export function LiveOutput({ pieces, label = "Output", waiting }: { pieces: OutputPiece[]; label?: string; waiting?: string }) {
  const element = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  useEffect(() => {
    const pre = element.current;
    if (pre !== null && follows.current) pre.scrollTop = pre.scrollHeight;
  }, [pieces]);
  return (
    <pre class="output" ref={element} tabIndex={0} role="log" aria-label={label} aria-live="off"
      onScroll={(event) => {
        const pre = event.currentTarget;
        follows.current = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 24;
      }}>
      {pieces.length === 0 && waiting !== undefined && <span class="cut-note">{waiting}</span>}
      {pieces.map((piece, at) => (
        <span key={at} class={piece.stream}><Ansi text={piece.data} /></span>
      ))}
    </pre>
  );
}

/** The output of an execution that has ended. */
export function FinishedOutput({ record }: { record: Schemas["ExecutionRecord"] }) {
  const parts: ["stdout" | "stderr", string | null | undefined, number][] = [
    ["stdout", record.stdout, record.stdout_dropped_bytes],
    ["stderr", record.stderr, record.stderr_dropped_bytes],
  ];
  const shown = parts.filter(([, text, dropped]) => (text ?? "") !== "" || dropped > 0);
  if (shown.length === 0) return <p class="muted pad-16">The program wrote nothing.</p>;
  return (
    <>
      {shown.map(([name, text, dropped]) => (
        <div key={name}>
          {shown.length > 1 && <h3 class="output-title">{name}</h3>}
          <pre class="output" tabIndex={0} role="region" aria-label={name}>
            <span class={name}><Ansi text={text ?? ""} /></span>
            {dropped > 0 && <span class="cut-note">{`\n${formatBytes(dropped)} more were not kept.`}</span>}
          </pre>
        </div>
      ))}
    </>
  );
}
