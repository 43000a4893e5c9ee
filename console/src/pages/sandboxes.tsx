// Sandboxes: which image, limits, network and storage a program gets.
import { useState } from "preact/hooks";
import { type Schemas, api, unwrap } from "../api/client";
import { useSandboxes } from "../api/lists";
import { hrefOf, place, setQuery } from "../router";
import { mayDevelop } from "../session";
import { Time } from "../ui/format";
import { Icon } from "../ui/icons";
import { List } from "../ui/list";
import { Confirm, PageHead, toast } from "../ui/parts";
import { SandboxForm } from "./sandbox-form";

type Sandbox = Schemas["SandboxRecord"];

export default function SandboxesPage() {
  const list = useSandboxes();
  const creating = place.value.query.get("create") !== null;
  const [editing, setEditing] = useState<Sandbox | null>(null);
  const [removing, setRemoving] = useState<Sandbox | null>(null);
  const close = () => {
    setEditing(null);
    setQuery({ create: null });
  };
  const create = mayDevelop.value && (
    <button type="button" class="button primary" onClick={() => setQuery({ create: "1" })}><Icon name="plus" /> New sandbox</button>
  );
  return (
    <>
      <PageHead title="Sandboxes">{create}</PageHead>
      <List label="Sandboxes" query={list} keyOf={(item) => item.id}
        empty={{ icon: "sandboxes", title: "There is no sandbox yet", text: "A sandbox says which image, limits and network a program gets. Keys belong to one.", action: create }}
        columns={[
          { title: "Name", primary: true, cell: (item) => mayDevelop.value ? <button type="button" class="link" onClick={() => setEditing(item)}>{item.name}</button> : item.name },
          { title: "Image", cell: (item) => <span class="mono wrap">{shortImage(item.image)}</span> },
          { title: "Limits", cell: (item) => <span class="number">{item.cpu} {item.cpu === 1 ? "core" : "cores"} · {item.memory_mb} MB · {item.disk_mb} MB disk</span> },
          { title: "Network", cell: (item) => item.network === "allowlist" ? `${item.network_allow.length} rules` : item.network },
          { title: "Profile", cell: (item) => item.profile },
          { title: "Created", cell: (item) => <Time at={item.created_at} form="short" /> },
        ]}
        actions={(item) => (
          <>
            <a class="button quiet small" href={hrefOf("/executions", { sandbox: item.id })}>Executions</a>
            {mayDevelop.value && <button type="button" class="button quiet icon small" aria-label={`Edit ${item.name}`} onClick={() => setEditing(item)}><Icon name="edit" /></button>}
            {mayDevelop.value && <button type="button" class="button quiet icon small" aria-label={`Delete ${item.name}`} onClick={() => setRemoving(item)}><Icon name="trash" /></button>}
          </>
        )} />
      {(creating || editing !== null) && mayDevelop.value && (
        <SandboxForm key={editing?.id ?? "new"} sandbox={editing} onClose={close} onSaved={(name) => { close(); list.reload(); toast(`Saved ${name}`); }} />
      )}
      {removing !== null && (
        <Confirm title={`Delete ${removing.name}?`} action="Delete the sandbox" onClose={() => setRemoving(null)}
          onConfirm={async () => {
            await unwrap(api.DELETE("/v1/admin/sandboxes/{id}", { params: { path: { id: removing.id } } }));
            list.reload();
          }}>
          <p>Its executions stay in the history. A sandbox that keys belong to cannot be deleted.</p>
        </Confirm>
      )}
    </>
  );
}

export function shortImage(image: string): string {
  return image.startsWith("sha256:") ? image.slice(0, 19) : image.replace(/@sha256:.*$/, "");
}
