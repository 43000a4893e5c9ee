// CodeMirror with our colours and languages. Loaded on demand.
import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import {
  HighlightStyle, StreamLanguage, type StreamParser, bracketMatching, indentOnInput, indentUnit, syntaxHighlighting,
} from "@codemirror/language";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState, type Extension } from "@codemirror/state";
import {
  EditorView, drawSelection, highlightActiveLine, highlightSpecialChars, keymap, lineNumbers,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";

export interface EditorOptions {
  value: string;
  language: string;
  label: string;
  readOnly: boolean;
  onChange: (value: string) => void;
  onSubmit: () => void;
  minHeight: number;
  maxHeight: number | null;
}

export interface EditorHandle {
  setValue(value: string): void;
  setLanguage(language: string): void;
  destroy(): void;
}

const THEME = EditorView.theme({
  "&": { color: "var(--text)", backgroundColor: "transparent", fontSize: "12.5px" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "20px" },
  ".cm-content": { padding: "8px 0", caretColor: "var(--accent)" },
  ".cm-gutters": { backgroundColor: "var(--surface)", color: "var(--faint)", border: "none" },
  ".cm-lineNumbers .cm-gutterElement": { padding: "0 10px 0 12px", minWidth: "34px" },
  ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--hover) 60%, transparent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "var(--accent-soft)",
  },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-specialChar": { color: "var(--warn)", backgroundColor: "var(--warn-soft)" },
  ".cm-matchingBracket": { backgroundColor: "var(--accent-soft)" },
  ".cm-panels": { backgroundColor: "var(--sunken)", color: "var(--text)" },
});

const COLOURS = HighlightStyle.define([
  { tag: [tags.keyword, tags.controlKeyword, tags.moduleKeyword, tags.operatorKeyword], color: "var(--ansi-5)" },
  { tag: [tags.string, tags.special(tags.string), tags.regexp], color: "var(--ansi-2)" },
  { tag: [tags.number, tags.bool, tags.null, tags.atom], color: "var(--ansi-3)" },
  { tag: [tags.comment, tags.lineComment, tags.blockComment], color: "var(--faint)", fontStyle: "italic" },
  { tag: [tags.function(tags.variableName), tags.function(tags.propertyName)], color: "var(--ansi-4)" },
  { tag: [tags.className, tags.typeName, tags.definition(tags.typeName)], color: "var(--ansi-6)" },
  { tag: [tags.meta, tags.annotation], color: "var(--ansi-6)" },
  { tag: tags.invalid, color: "var(--bad)" },
]);

type Loader = () => Promise<Extension>;
const stream = <T>(parser: StreamParser<T>): Extension => StreamLanguage.define(parser);

const LANGUAGES: Record<string, Loader> = {
  python: async () => [(await import("@codemirror/lang-python")).python(), indentUnit.of("    ")],
  node: async () => (await import("@codemirror/lang-javascript")).javascript(),
  deno: async () => (await import("@codemirror/lang-javascript")).javascript({ typescript: true }),
  bun: async () => (await import("@codemirror/lang-javascript")).javascript({ typescript: true }),
  json: async () => (await import("@codemirror/lang-json")).json(),
  php: async () => (await import("@codemirror/lang-php")).php(),
  java: async () => (await import("@codemirror/lang-java")).java(),
  bash: async () => stream((await import("@codemirror/legacy-modes/mode/shell")).shell),
  sh: async () => stream((await import("@codemirror/legacy-modes/mode/shell")).shell),
  ruby: async () => stream((await import("@codemirror/legacy-modes/mode/ruby")).ruby),
  perl: async () => stream((await import("@codemirror/legacy-modes/mode/perl")).perl),
  lua: async () => stream((await import("@codemirror/legacy-modes/mode/lua")).lua),
  go: async () => stream((await import("@codemirror/legacy-modes/mode/go")).go),
  r: async () => stream((await import("@codemirror/legacy-modes/mode/r")).r),
  julia: async () => stream((await import("@codemirror/legacy-modes/mode/julia")).julia),
  tcl: async () => stream((await import("@codemirror/legacy-modes/mode/tcl")).tcl),
};

function editingExtensions(options: EditorOptions): Extension[] {
  if (options.readOnly) return [EditorState.readOnly.of(true)];
  return [
    history(),
    indentOnInput(),
    bracketMatching(),
    closeBrackets(),
    highlightActiveLine(),
    keymap.of([
      { key: "Mod-Enter", run: () => (options.onSubmit(), true) },
      ...closeBracketsKeymap,
      ...historyKeymap,
      // Escape, then Tab leaves the editor, as CodeMirror's own keymap documents.
      indentWithTab,
    ]),
  ];
}

/** Puts an editor into a shadow root of `host`. */
export function createEditor(host: HTMLElement, options: EditorOptions): EditorHandle {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  root.replaceChildren();
  const language = new Compartment();
  let current = "";
  const sizes: Record<string, string> = { minHeight: `${options.minHeight}px` };
  if (options.maxHeight !== null) sizes.maxHeight = `${options.maxHeight}px`;
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: options.value,
      extensions: [
        lineNumbers(),
        highlightSpecialChars(),
        drawSelection(),
        highlightSelectionMatches(),
        syntaxHighlighting(COLOURS),
        EditorState.tabSize.of(4),
        ...editingExtensions(options),
        keymap.of([...defaultKeymap, ...searchKeymap]),
        language.of([]),
        THEME,
        EditorView.theme({ "&": sizes, ".cm-scroller": { overflow: "auto", minHeight: sizes.minHeight ?? "0" } }),
        EditorView.contentAttributes.of({ "aria-label": options.label, tabindex: "0" }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) options.onChange(update.state.doc.toString());
        }),
      ],
    }),
  });
  const setLanguage = (name: string) => {
    if (name === current) return;
    current = name;
    const load = LANGUAGES[name] ?? (async () => []);
    load().then((extension) => {
      if (current === name) view.dispatch({ effects: language.reconfigure(extension) });
    });
  };
  setLanguage(options.language);
  return {
    setValue(value) {
      const now = view.state.doc.toString();
      if (now !== value) view.dispatch({ changes: { from: 0, to: now.length, insert: value } });
    },
    setLanguage,
    destroy: () => view.destroy(),
  };
}
