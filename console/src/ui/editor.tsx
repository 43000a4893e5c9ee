// The code editor, loaded when a page first shows code. It lives in a shadow root, where CodeMirror
// uses constructed style sheets, so that the page needs no inline style.
import { useEffect, useRef, useState } from "preact/hooks";
import type { EditorHandle } from "./editor-core";

export interface EditorProps {
  value: string;
  language: string;
  label: string;
  readOnly?: boolean;
  onChange?: (value: string) => void;
  onSubmit?: () => void;
  minHeight?: number;
  maxHeight?: number;
}

export function Editor(props: EditorProps) {
  const host = useRef<HTMLDivElement>(null);
  const handle = useRef<EditorHandle | null>(null);
  const latest = useRef(props);
  // What the editor itself reported. It comes back as a property, possibly after the next key.
  const reported = useRef<string[]>([]);
  latest.current = props;
  const [ready, setReady] = useState(false);
  useEffect(() => {
    let gone = false;
    import("./editor-core").then(({ createEditor }) => {
      if (gone || host.current === null) return;
      handle.current = createEditor(host.current, {
        value: latest.current.value,
        language: latest.current.language,
        label: latest.current.label,
        readOnly: latest.current.readOnly === true,
        onChange: (value) => {
          if (latest.current.onChange === undefined) return;
          reported.current.push(value);
          latest.current.onChange(value);
        },
        onSubmit: () => latest.current.onSubmit?.(),
        minHeight: latest.current.minHeight ?? 0,
        maxHeight: latest.current.maxHeight ?? null,
      });
      setReady(true);
    });
    return () => {
      gone = true;
      handle.current?.destroy();
      handle.current = null;
    };
  }, []);
  useEffect(() => {
    const at = reported.current.lastIndexOf(props.value);
    if (at < 0) handle.current?.setValue(props.value);
    reported.current.splice(0, at + 1);
  }, [props.value, ready]);
  useEffect(() => handle.current?.setLanguage(props.language), [props.language, ready]);
  const lines = props.value.split("\n").length;
  const height = Math.min(Math.max(props.minHeight ?? 0, lines * 20 + 16), props.maxHeight ?? 100_000);
  return <div ref={host} class="editor-host" style={{ minHeight: `${height}px` }} />;
}
