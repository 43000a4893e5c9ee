// The filters of the history. They live in the address, so that a view can be shared.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Schemas } from "../api/client";
import { hrefOf, place, setQuery } from "../router";
import { Icon } from "../ui/icons";

const STATUSES: Schemas["StatusName"][] = ["running", "success", "failed", "timeout", "cancelled", "oom", "blocked"];
const LANGUAGES: Schemas["LanguageName"][] = ["python", "node", "bash", "sh", "ruby", "perl", "php", "deno", "bun", "r", "lua", "go", "java", "julia", "tcl"];
const RANGES: [string, string, number][] = [
  ["15m", "Last 15 minutes", 900], ["1h", "Last hour", 3600], ["24h", "Last 24 hours", 86_400],
  ["7d", "Last 7 days", 604_800], ["30d", "Last 30 days", 2_592_000],
];
const DIRECT = ["status", "language", "sandbox", "key", "thread_id", "q", "since", "until"];

export function hasFilters(query: URLSearchParams): boolean {
  return [...query.keys()].some((name) => DIRECT.includes(name) || name === "range" || name.startsWith("metadata."));
}

/** The filters as parameters of the API. A range counts back from now, to the minute. */
export function queryOfFilters(query: URLSearchParams): string {
  const made = new URLSearchParams();
  for (const [name, value] of query) {
    if (DIRECT.includes(name) || name.startsWith("metadata.")) made.set(name, value);
  }
  const range = RANGES.find(([id]) => id === query.get("range"));
  if (range !== undefined) {
    const now = Math.floor(Date.now() / 60_000) * 60_000;
    made.set("since", new Date(now - range[2] * 1000).toISOString());
  }
  return made.toString();
}

interface BarProps {
  sandboxes: { id: string; name: string }[];
  keys: { id: string; name: string }[];
}
export function FilterBar({ sandboxes, keys }: BarProps) {
  const query = place.value.query;
  return (
    <div class="filters" role="search" aria-label="Filter executions">
      <SearchBox />
      <Pick name="status" label="Status" options={STATUSES.map((id) => ({ id, name: id }))} />
      <Pick name="language" label="Language" options={LANGUAGES.map((id) => ({ id, name: id }))} />
      <Pick name="sandbox" label="Sandbox" options={sandboxes} />
      <Pick name="key" label="Key" options={keys} />
      <PickTime />
      <AddFilter button="Thread" label="Thread id" placeholder="thread id" read={(text) => (text === "" ? null : { thread_id: text })} />
      <AddFilter button="Metadata" label="Metadata as key=value" placeholder="key=value" read={readPair} />
      {[...query].filter(([name]) => name.startsWith("metadata.") || name === "thread_id").map(([name, value]) => (
        <button type="button" class="chip" key={name} onClick={() => setQuery({ [name]: null })} aria-label={`Remove the filter ${name} ${value}`}>
          <span class="cut">{name.replace(/^metadata\./, "").replace("thread_id", "thread")}=<b>{value}</b></span> <Icon name="close" />
        </button>
      ))}
      {hasFilters(query) && <a class="button quiet small" href={hrefOf("/executions")}>Clear</a>}
    </div>
  );
}

function SearchBox() {
  const current = place.value.query.get("q") ?? "";
  const [text, setText] = useState(current);
  useEffect(() => setText(current), [current]);
  useEffect(() => {
    if (text === current) return;
    const timer = setTimeout(() => setQuery({ q: text }), 300);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <div class="search-box">
      <Icon name="search" />
      <input class="input" type="search" data-search aria-label="Search in code and output" placeholder="Search code and output  /"
        value={text} onInput={(event) => setText(event.currentTarget.value)} />
    </div>
  );
}

interface PickProps {
  name: string;
  label: string;
  any?: string;
  options: { id: string; name: string }[];
}
function Pick({ name, label, options, any }: PickProps) {
  const value = place.value.query.get(name) ?? "";
  const known = value === "" || options.some((option) => option.id === value) ? options : [...options, { id: value, name: value }];
  return (
    <select class={`select pick ${value === "" ? "" : "set"}`} aria-label={label} value={value}
      onChange={(event) => setQuery({ [name]: event.currentTarget.value })}>
      <option value="" selected={value === ""}>{any ?? label}</option>
      {known.map((option) => <option key={option.id} value={option.id} selected={option.id === value}>{option.name}</option>)}
    </select>
  );
}

/** `key=value` as a filter of metadata. */
function readPair(text: string): Record<string, string> | null {
  const at = text.indexOf("=");
  return at < 1 ? null : { [`metadata.${text.slice(0, at).trim()}`]: text.slice(at + 1).trim() };
}

interface AddProps {
  button: string;
  label: string;
  placeholder: string;
  /** What the text adds to the query; null if it cannot be read. */
  read: (text: string) => Record<string, string> | null;
}
function AddFilter({ button, label, placeholder, read }: AddProps) {
  const [open, setOpen] = useState(false);
  const [text, setText] = useState("");
  const [problem, setProblem] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (open) field.current?.focus();
  }, [open]);
  const add = (event: Event) => {
    event.preventDefault();
    const added = read(text.trim());
    setProblem(added === null);
    if (added === null) return;
    setQuery(added);
    setOpen(false);
    setText("");
  };
  if (!open) {
    return <button type="button" class="button pick" onClick={() => setOpen(true)}><Icon name="plus" /> {button}</button>;
  }
  return (
    <form class="row" onSubmit={add}>
      <input class="input mono pick" aria-label={label} aria-invalid={problem} placeholder={placeholder} value={text} ref={field}
        onKeyDown={(event) => { if (event.key === "Escape") setOpen(false); }}
        onInput={(event) => { setText(event.currentTarget.value); setProblem(false); }} />
      <button type="submit" class="button small">Add</button>
    </form>
  );
}

/** A range that counts back from now, or two times of the visitor's zone. */
function PickTime() {
  const query = place.value.query;
  const [open, setOpen] = useState(false);
  const range = query.get("range") ?? "";
  const exact = query.has("since") || query.has("until");
  // The fields stay when one of them is emptied.
  useEffect(() => {
    if (exact) setOpen(true);
  }, [exact]);
  const value = open || exact ? "exact" : range;
  const choose = (chosen: string) => {
    setOpen(chosen === "exact");
    setQuery({ range: chosen === "exact" ? null : chosen, ...(chosen === "exact" ? {} : { since: null, until: null }) });
  };
  return (
    <>
      <select class={`select pick ${value === "" ? "" : "set"}`} aria-label="Time" value={value} onChange={(event) => choose(event.currentTarget.value)}>
        <option value="" selected={value === ""}>Any time</option>
        {RANGES.map(([id, name]) => <option key={id} value={id} selected={id === value}>{name}</option>)}
        <option value="exact" selected={value === "exact"}>From … to …</option>
      </select>
      {value === "exact" && (
        <span class="row">
          <TimeInput name="since" label="From" />
          <span class="muted">to</span>
          <TimeInput name="until" label="To" />
        </span>
      )}
    </>
  );
}

/** A local time as the field of the browser has it. */
function localText(at: string | null): string {
  const time = at === null ? NaN : Date.parse(at);
  if (Number.isNaN(time)) return "";
  return new Date(time - new Date(time).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

function TimeInput({ name, label }: { name: "since" | "until"; label: string }) {
  const set = (text: string) => {
    const time = Date.parse(text);
    setQuery({ [name]: Number.isNaN(time) ? null : new Date(time).toISOString() });
  };
  return <input class="input date" type="datetime-local" aria-label={label} value={localText(place.value.query.get(name))}
    onChange={(event) => set(event.currentTarget.value)} />;
}
