// Small components that every page uses.
import { signal } from "@preact/signals";
import type { ComponentChildren, TargetedKeyboardEvent } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { ApiFailure } from "../api/client";
import { Icon, type IconName } from "./icons";

// ---- Messages in a corner, read out by screen readers.

interface ToastLine {
  id: number;
  text: string;
  bad: boolean;
}
const toasts = signal<ToastLine[]>([]);
let nextToast = 0;

export function toast(text: string, bad = false): void {
  const id = nextToast++;
  toasts.value = [...toasts.value, { id, text, bad }];
  setTimeout(() => {
    toasts.value = toasts.value.filter((line) => line.id !== id);
  }, bad ? 8000 : 3500);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((line) => (
        <div key={line.id} class={`toast ${line.bad ? "bad" : ""}`}>{line.text}</div>
      ))}
    </div>
  );
}

/** Runs an action and shows its failure as a message. Returns whether it succeeded. */
export async function attempt(action: () => Promise<unknown>, done?: string): Promise<boolean> {
  try {
    await action();
  } catch (failure) {
    toast(failure instanceof Error ? failure.message : String(failure), true);
    return false;
  }
  if (done !== undefined) toast(done);
  return true;
}

// ---- Forms of a list: loading, failed, empty.

export function Loading({ lines = 6, label = "Loading" }: { lines?: number; label?: string }) {
  return (
    <div class="loading" role="status">
      <span class="visually-hidden">{label}…</span>
      {Array.from({ length: lines }, (_, at) => <i key={at} />)}
    </div>
  );
}

export function Failed({ error, retry }: { error: Error; retry?: () => void }) {
  const code = error instanceof ApiFailure ? error.code : "";
  const advice =
    code === "forbidden" ? "Your role does not allow this. An owner of the team can change your role."
    : code === "not_found" ? "It may have been deleted, or it belongs to another team."
    : null;
  return (
    <div class="empty" role="alert">
      <h2>{code === "not_found" ? "There is nothing here" : "This could not be loaded"}</h2>
      <p class="wrap">{error.message}</p>
      {advice !== null && <p>{advice}</p>}
      {retry !== undefined && (
        <button type="button" class="button" onClick={retry}>
          <Icon name="refresh" /> Try again
        </button>
      )}
    </div>
  );
}

interface EmptyProps {
  icon: IconName;
  title: string;
  children?: ComponentChildren;
}
export function Empty({ icon, title, children }: EmptyProps) {
  return (
    <div class="empty">
      <Icon name={icon} />
      <h2>{title}</h2>
      {children}
    </div>
  );
}

// ---- The head of a page.

interface HeadProps {
  title: ComponentChildren;
  crumb?: { href: string; text: string };
  note?: ComponentChildren;
  children?: ComponentChildren;
}
export function PageHead({ title, crumb, note, children }: HeadProps) {
  return (
    <div class="page-head">
      {crumb !== undefined && <a class="crumb" href={crumb.href}>{crumb.text}</a>}
      <h1>{title}</h1>
      {note !== undefined && <span class="note">{note}</span>}
      {children !== undefined && <div class="actions">{children}</div>}
    </div>
  );
}

// ---- Dialogs.

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  wide?: boolean;
}
/** A modal dialog; the browser keeps the focus inside and closes it with Escape. */
export function Dialog({ title, onClose, children, wide }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = element.current;
    const before = document.activeElement;
    dialog?.showModal();
    const first = dialog?.querySelector<HTMLElement>("[data-first], .body input, .body select, .body textarea, .body button");
    first?.focus();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      class={`dialog ${wide === true ? "wide" : ""}`}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
    >
      <header>
        <h2 id={id}>{title}</h2>
        <button type="button" class="button quiet icon" aria-label="Close" onClick={onClose}>
          <Icon name="close" />
        </button>
      </header>
      <div class="body">{children}</div>
    </dialog>
  );
}

interface ConfirmProps {
  title: string;
  action: string;
  onConfirm: () => Promise<unknown>;
  onClose: () => void;
  children: ComponentChildren;
}
/** Asks before something that cannot be undone. */
export function Confirm({ title, action, onConfirm, onClose, children }: ConfirmProps) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const confirm = async () => {
    setBusy(true);
    setProblem(null);
    try {
      await onConfirm();
      onClose();
    } catch (failure) {
      setProblem(failure instanceof Error ? failure.message : String(failure));
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <div class="form">
        <div class="wrap">{children}</div>
        <div class="form-foot">
          {problem !== null && <span class="problem" role="alert">{problem}</span>}
          <button type="button" class="button" data-first onClick={onClose}>Keep it</button>
          <button type="button" class="button danger" disabled={busy} onClick={confirm}>{action}</button>
        </div>
      </div>
    </Dialog>
  );
}

// ---- Copying.

export async function copyText(text: string): Promise<void> {
  const copied = await writeClipboard(text).catch(() => copyBySelection(text));
  if (copied) toast("Copied");
  else toast("The browser did not allow copying. Select the text instead.", true);
}

async function writeClipboard(text: string): Promise<boolean> {
  await navigator.clipboard.writeText(text);
  return true;
}

/** Browsers have no `navigator.clipboard` on a page that came over plain HTTP from another host. */
function copyBySelection(text: string): boolean {
  const before = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  area.readOnly = true;
  area.className = "visually-hidden";
  // A modal dialog takes the focus back from what is outside of it.
  (before?.closest("dialog") ?? document.body).append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (before instanceof HTMLElement) before.focus();
  return copied;
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  return (
    <button type="button" class="button quiet icon small" aria-label={label} title={label} onClick={() => copyText(text)}>
      <Icon name="copy" />
    </button>
  );
}

export function CopyLine({ text, label }: { text: string; label: string }) {
  return (
    <div class="copy">
      <code>{text}</code>
      <button type="button" class="button" aria-label={label} onClick={() => copyText(text)}>
        <Icon name="copy" /> Copy
      </button>
    </div>
  );
}

// ---- Tabs.

interface TabsProps<T extends string> {
  label: string;
  tabs: { id: T; text: ComponentChildren }[];
  selected: T;
  onSelect: (id: T) => void;
}
export function Tabs<T extends string>({ label, tabs, selected, onSelect }: TabsProps<T>) {
  const move = (event: TargetedKeyboardEvent<HTMLDivElement>) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (step === 0) return;
    event.preventDefault();
    const at = tabs.findIndex((tab) => tab.id === selected);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    if (next === undefined) return;
    onSelect(next.id);
    event.currentTarget.querySelectorAll<HTMLElement>(".tab")[(at + step + tabs.length) % tabs.length]?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} onKeyDown={move}>
      {tabs.map((tab) => (
        <button
          key={tab.id}
          type="button"
          role="tab"
          class="tab"
          aria-selected={tab.id === selected}
          tabIndex={tab.id === selected ? 0 : -1}
          onClick={() => onSelect(tab.id)}
        >
          {tab.text}
        </button>
      ))}
    </div>
  );
}

export function Meter({ value, label }: { value: number; label: string }) {
  const part = Math.max(0, Math.min(1, value));
  return (
    <div class={`meter ${part > 0.9 ? "hot" : ""}`} role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(part * 100)}>
      <i style={{ width: `${(part * 100).toFixed(1)}%` }} />
    </div>
  );
}

export function Metadata({ values, limit = 99 }: { values: Record<string, string>; limit?: number }) {
  const entries = Object.entries(values);
  return (
    <>
      {entries.slice(0, limit).map(([name, value]) => (
        <span class="tag" key={name} title={`${name}=${value}`}>
          <span>{name}=<b>{value}</b></span>
        </span>
      ))}
      {entries.length > limit && <span class="faint small">+{entries.length - limit}</span>}
    </>
  );
}
