// The files that an execution wrote, each with a preview and a download.
import { useState } from "preact/hooks";
import { type Schemas, encodePath } from "../api/client";
import { teamSearch } from "../api/lists";
import { Visible, formatBytes } from "./format";
import { Icon } from "./icons";
import { FilePreview } from "./preview";

interface FilesProps {
  traceId: string;
  files: Schemas["OutputFileRecord"][];
}
export function FilesCard({ traceId, files }: FilesProps) {
  const [open, setOpen] = useState<string | null>(null);
  if (files.length === 0) return null;
  const addressOf = (name: string) => `/v1/executions/${traceId}/files/${encodePath(name)}${teamSearch()}`;
  return (
    <section class="card" aria-label="Files">
      <header><h2>Files</h2><span class="muted">{files.length} written</span></header>
      <ul class="files">
        {files.map((file) => (
          <li key={file.name}>
            <div class="file-line">
              <button type="button" class="link cut" aria-expanded={open === file.name} onClick={() => setOpen(open === file.name ? null : file.name)}>
                <Icon name="file" /> <Visible text={file.name} />
              </button>
              {file.truncated && <span class="badge warn">partly kept</span>}
              <span class="faint number">{formatBytes(file.size)}</span>
              <a class="button quiet icon small" href={addressOf(file.name)} download={file.name.split("/").pop()} aria-label={`Download ${file.name}`}>
                <Icon name="download" />
              </a>
            </div>
            {open === file.name && <FilePreview address={addressOf(file.name)} name={file.name} size={file.size} />}
          </li>
        ))}
      </ul>
    </section>
  );
}
