// Values as people read them: times, sizes, durations, statuses.
import { useEffect, useState } from "preact/hooks";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function formatBytes(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : value.toFixed(value < 10 ? 1 : 0)} ${UNITS[unit]}`;
}

export function formatNumber(value: number, digits = 0): string {
  return value.toLocaleString(undefined, { maximumFractionDigits: digits });
}

export function formatMillis(ms: number): string {
  if (ms === 0) return "< 1 ms";
  if (ms < 1) return `${(ms * 1000).toFixed(0)} µs`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1).replace(/\.0$/, "") : Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  const minutes = Math.floor(ms / 60_000);
  return `${minutes} min ${Math.round((ms % 60_000) / 1000)} s`;
}

function formatAgo(then: number, now: number): string {
  const seconds = Math.round((now - then) / 1000);
  const ahead = seconds < 0;
  const size = Math.abs(seconds);
  const text =
    size < 5 ? "now"
    : size < 60 ? `${size} s`
    : size < 3600 ? `${Math.floor(size / 60)} min`
    : size < 86_400 ? `${Math.floor(size / 3600)} h`
    : `${Math.floor(size / 86_400)} d`;
  if (text === "now") return text;
  return ahead ? `in ${text}` : `${text} ago`;
}

const LOCAL = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});
const SHORT = new Intl.DateTimeFormat(undefined, {
  month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});

/** A time in the visitor's zone; UTC when the pointer rests on it. */
export function Time({ at, form = "full" }: { at: string | number | null | undefined; form?: "full" | "short" | "ago" }) {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    if (form !== "ago") return;
    const timer = setInterval(() => setNow(Date.now()), 15_000);
    return () => clearInterval(timer);
  }, [form]);
  if (at === null || at === undefined) return <span class="faint">–</span>;
  const date = new Date(typeof at === "number" ? at * 1000 : at);
  if (Number.isNaN(date.getTime())) return <span>{String(at)}</span>;
  const utc = `${date.toISOString().replace("T", " ").replace(/\.\d+Z$/, "")} UTC`;
  const text =
    form === "ago" ? formatAgo(date.getTime(), now) : form === "short" ? SHORT.format(date) : LOCAL.format(date);
  return (
    <time dateTime={date.toISOString()} title={form === "ago" ? `${LOCAL.format(date)} · ${utc}` : utc} class="number">
      {text}
    </time>
  );
}

const TONES: Record<string, string> = {
  success: "good", completed: "good", approved: "good", used: "good",
  failed: "bad", oom: "bad", denied: "bad", down: "bad", up: "good", unknown: "",
  timeout: "warn", blocked: "warn", requires_action: "warn", pending: "warn", expired: "",
  running: "live", in_progress: "live", queued: "live",
  cancelled: "", revoked: "",
};
const WORDS: Record<string, string> = {
  oom: "out of memory", in_progress: "in progress", requires_action: "needs approval",
};

export function Status({ value }: { value: string }) {
  return (
    <span class={`badge ${TONES[value] ?? ""}`}>
      <span class="dot" aria-hidden="true" />
      {WORDS[value] ?? value}
    </span>
  );
}

// Characters that a reader cannot see, or that change the order of what they see.
const HIDDEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{e0000}-\u{e0fff}]/gu;

/** Text of others, with every hidden character written as its number. */
export function Visible({ text }: { text: string }) {
  const parts: preact.ComponentChildren[] = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > from) parts.push(text.slice(from, match.index));
    const code = (match[0].codePointAt(0) ?? 0).toString(16);
    parts.push(<span class="hidden-char">{`\\u{${code}}`}</span>);
    from = match.index + match[0].length;
  }
  if (from === 0) return <>{text}</>;
  parts.push(text.slice(from));
  return <>{parts}</>;
}
