// The keyboard: `/` finds, `g` and a letter goes, `?` explains.
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { hrefOf, navigate } from "./router";
import { MENU } from "./routes";
import { visibleEntries } from "./shell";
import { Icon } from "./ui/icons";
import { Dialog } from "./ui/parts";

function isTyping(target: EventTarget | null): boolean {
  const element = target instanceof HTMLElement ? target : null;
  if (element === null) return false;
  // Events from the editor come out of its shadow root as events of its host.
  if (element.classList.contains("editor-host")) return true;
  return element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName);
}

/** Watches for the shortcuts of the whole console. Returns how to stop. */
export function watchKeys(openPalette: () => void, openHelp: () => void): () => void {
  let awaitsGoal = false;
  const handle = (event: KeyboardEvent) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "k") {
      event.preventDefault();
      openPalette();
      return;
    }
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter" && event.target instanceof HTMLElement) {
      // In a field of several lines, Enter alone begins another line.
      event.target.closest("form")?.requestSubmit();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]") !== null) return;
    if (awaitsGoal) {
      awaitsGoal = false;
      const entry = MENU.flatMap((group) => visibleEntries(group.entries)).find((each) => each.key === event.key);
      if (entry !== undefined) {
        event.preventDefault();
        navigate(hrefOf(entry.path));
      }
      return;
    }
    if (event.key === "g") awaitsGoal = true;
    else if (event.key === "?") openHelp();
    else if (event.key === "/") {
      event.preventDefault();
      const search = document.querySelector<HTMLInputElement>("[data-search]");
      if (search === null) openPalette();
      else search.focus();
    }
  };
  document.addEventListener("keydown", handle);
  return () => document.removeEventListener("keydown", handle);
}

export function Palette({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const id = useId();
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
    return () => dialog.current?.close();
  }, []);
  const wanted = text.trim().toLowerCase();
  const pages = MENU.flatMap((group) => visibleEntries(group.entries))
    .filter((entry) => entry.title.toLowerCase().includes(wanted))
    .map((entry) => ({ title: entry.title, href: hrefOf(entry.path), icon: entry.icon, key: entry.key }));
  const found = [...pages, ...directGoals(text.trim())];
  const chosen = Math.min(at, found.length - 1);
  const go = (index: number) => {
    const goal = found[index];
    if (goal === undefined) return;
    onClose();
    navigate(goal.href);
  };
  const handleKey = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, found.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(chosen - 1, 0));
    else if (event.key === "Enter") go(chosen);
    else return;
    event.preventDefault();
  };
  return (
    <dialog ref={dialog} class="dialog palette" aria-label="Go to" onCancel={(event) => { event.preventDefault(); onClose(); }}
      onClick={(event) => { if (event.target === dialog.current) onClose(); }}>
      <input class="input" role="combobox" aria-expanded="true" aria-controls={id} aria-autocomplete="list"
        aria-activedescendant={`${id}-${chosen}`} aria-label="Page, trace id or thread" placeholder="Page, trace id or thread…"
        value={text} onKeyDown={handleKey}
        onInput={(event) => { setText(event.currentTarget.value); setAt(0); }} />
      <ul id={id} role="listbox" aria-label="Goals">
        {found.map((goal, index) => (
          <li key={goal.href} id={`${id}-${index}`} role="option" aria-selected={index === chosen} onClick={() => go(index)}>
            <Icon name={goal.icon} /> <span class="cut">{goal.title}</span>
            {goal.key !== undefined && <kbd>g {goal.key}</kbd>}
          </li>
        ))}
      </ul>
    </dialog>
  );
}

/** Goals that are named by their id. */
function directGoals(text: string) {
  if (/^trc_/.test(text)) return [{ title: `Execution ${text}`, href: hrefOf(`/executions/${encodeURIComponent(text)}`), icon: "executions" as const, key: undefined }];
  if (text === "") return [];
  return [
    { title: `Search executions for “${text}”`, href: hrefOf("/executions", { q: text }), icon: "search" as const, key: undefined },
    ...(/^[A-Za-z0-9][A-Za-z0-9_-]*$/.test(text)
      ? [{ title: `Thread ${text}`, href: hrefOf(`/threads/${text}`), icon: "threads" as const, key: undefined }]
      : []),
  ];
}

export function ShortcutHelp({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard" onClose={onClose}>
      <dl class="facts">
        <dt><kbd>/</kbd></dt><dd>Search on this page, or go to another</dd>
        <dt><kbd>Ctrl</kbd> <kbd>K</kbd></dt><dd>Go to a page, an execution or a thread</dd>
        <dt><kbd>Ctrl</kbd> <kbd>Enter</kbd></dt><dd>Run the program in the playground, or submit a form</dd>
        <dt><kbd>?</kbd></dt><dd>This list</dd>
        {MENU.flatMap((group) => visibleEntries(group.entries)).filter((entry) => entry.key !== undefined).map((entry) => (
          <>
            <dt key={entry.path}><kbd>g</kbd> <kbd>{entry.key}</kbd></dt>
            <dd>{entry.title}</dd>
          </>
        ))}
      </dl>
    </Dialog>
  );
}
