// What a program gets besides its code: thread, standard input, files, variables, metadata.
import { useRef } from "preact/hooks";
import { api, unwrap } from "../api/client";
import { teamParam } from "../api/lists";
import { teamName } from "../session";
import { type Problems, TextField, VariablesField } from "../ui/form";
import { formatBytes } from "../ui/format";
import { Icon } from "../ui/icons";
import { toast } from "../ui/parts";
import { useQuery } from "../ui/query";
import type { Draft, DraftFile } from "./playground-draft";

const MOST_BYTES = 8 * 1024 * 1024;

function readFile(file: File): Promise<DraftFile> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => {
      const text = String(reader.result);
      resolve({ name: file.name, size: file.size, base64: text.slice(text.indexOf(",") + 1) });
    };
    reader.onerror = () => reject(new Error(`${file.name} could not be read`));
    reader.readAsDataURL(file);
  });
}

export function dropFiles(files: FileList | null | undefined, add: (files: DraftFile[]) => void): void {
  const list = [...(files ?? [])];
  const large = list.find((file) => file.size > MOST_BYTES);
  if (large !== undefined) {
    toast(`${large.name} is larger than ${formatBytes(MOST_BYTES)}. Upload it to a thread instead.`, true);
    return;
  }
  Promise.all(list.map(readFile)).then(add, (error: Error) => toast(error.message, true));
}

interface InputsProps {
  draft: Draft;
  change: (part: Partial<Draft>) => void;
  problems: Problems;
}
export function PlaygroundInputs({ draft, change, problems }: InputsProps) {
  const picker = useRef<HTMLInputElement>(null);
  const threads = useQuery(
    async () => (await unwrap(api.GET("/v1/threads", { params: { query: { ...teamParam(), limit: 100 } } }))).threads.map((each) => each.thread_id),
    [teamName.value],
  );
  return (
    <section class="card pad form" aria-label="Inputs">
      <div class="form-row">
        <TextField label="Thread" name="thread_id" value={draft.thread} onChange={(thread) => change({ thread })} problems={problems}
          placeholder="none" list={threads.data} />
        <TextField label="Timeout in seconds" name="timeout" value={draft.timeout} onChange={(timeout) => change({ timeout })} problems={problems} placeholder="60" inputMode="numeric" />
      </div>
      <div class="field">
        <span class="field-label">Files</span>
        {draft.files.length > 0 && (
          <ul class="row">
            {draft.files.map((file, at) => (
              <li class="chip" key={at}>
                <span class="cut">{file.name} · {formatBytes(file.size)}</span>
                <button type="button" class="button quiet icon small" aria-label={`Remove ${file.name}`}
                  onClick={() => change({ files: draft.files.filter((_, index) => index !== at) })}><Icon name="close" /></button>
              </li>
            ))}
          </ul>
        )}
        <button type="button" class="dropzone" onClick={() => picker.current?.click()}>
          <Icon name="upload" /> Drop files here, or choose them
        </button>
        <input ref={picker} type="file" multiple hidden aria-label="Files for the program" onChange={(event) => {
          dropFiles(event.currentTarget.files, (files) => change({ files: [...draft.files, ...files] }));
          event.currentTarget.value = "";
        }} />
      </div>
      <details open={draft.stdin !== "" || problems.fields.stdin !== undefined}>
        <summary>Standard input</summary>
        <TextField label="Standard input" name="stdin" rows={3} value={draft.stdin} onChange={(stdin) => change({ stdin })} problems={problems} />
      </details>
      <details open={draft.variables.length > 0 || problems.fields.env_vars !== undefined}>
        <summary>Variables</summary>
        <VariablesField rows={draft.variables} onChange={(variables) => change({ variables })} secrets={false} problem={problems.fields.env_vars} />
      </details>
      <details open={draft.metadata.length > 0 || problems.fields.metadata !== undefined}>
        <summary>Metadata</summary>
        <VariablesField label="Metadata" name="metadata" rows={draft.metadata} onChange={(metadata) => change({ metadata })} secrets={false} problem={problems.fields.metadata} />
      </details>
    </section>
  );
}
