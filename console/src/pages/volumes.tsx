// Volumes: directories of a team on this server, shared by its executions.
import { useState } from "preact/hooks";
import { type Schemas, api, unwrap } from "../api/client";
import { teamParam } from "../api/lists";
import { mayOwn, session, teamName } from "../session";
import { FormFoot, TextField, readNumber, useSubmit } from "../ui/form";
import { Time, formatBytes, formatNumber } from "../ui/format";
import { Icon } from "../ui/icons";
import { List } from "../ui/list";
import { Confirm, Dialog, Meter, PageHead, toast } from "../ui/parts";
import { useQuery } from "../ui/query";
import { BindingsDialog } from "./bindings";

type Volume = Schemas["VolumeRecord"];
const GIB = 1024 ** 3;

export default function VolumesPage() {
  const list = useQuery(
    async (signal) => (await unwrap(api.GET("/v1/admin/volumes", { params: { query: teamParam() }, signal }))).volumes, [teamName.value],
  );
  const [form, setForm] = useState<{ current: Volume | null } | null>(null);
  const [removing, setRemoving] = useState<Volume | null>(null);
  const [binding, setBinding] = useState<Volume | null>(null);
  const create = mayOwn.value && <button type="button" class="button primary" onClick={() => setForm({ current: null })}><Icon name="plus" /> New volume</button>;
  return (
    <>
      <PageHead title="Volumes" note="Directories that executions share">{create}</PageHead>
      <List label="Volumes" query={list} keyOf={(item) => item.id}
        empty={{ icon: "volumes", title: "There is no volume yet", text: "A volume keeps files for several sandboxes and threads at once, at /data/NAME.", action: create }}
        columns={[
          { title: "Name", primary: true, cell: (item) => item.name },
          { title: "Used", cell: (item) => (
            <div class="meter-cell"><span class="number">{formatBytes(item.used_bytes)} of {formatBytes(item.quota_bytes)}</span>
              <Meter value={item.used_bytes / Math.max(item.quota_bytes, 1)} label={`Use of ${item.name}`} /></div>
          ) },
          { title: "Files", end: true, cell: (item) => formatNumber(item.entries) },
          { title: "Created", cell: (item) => <Time at={item.created_at} form="short" /> },
        ]}
        {...(mayOwn.value ? {
          actions: (item: Volume) => (
            <>
              <button type="button" class="button quiet small" onClick={() => setBinding(item)}>Uses</button>
              <button type="button" class="button quiet icon small" aria-label={`Edit ${item.name}`} onClick={() => setForm({ current: item })}><Icon name="edit" /></button>
              <button type="button" class="button quiet icon small" aria-label={`Delete ${item.name}`} onClick={() => setRemoving(item)}><Icon name="trash" /></button>
            </>
          ),
        } : {})} />
      {form !== null && <VolumeForm current={form.current} onClose={() => setForm(null)} onSaved={() => { setForm(null); list.reload(); toast("Saved"); }} />}
      {binding !== null && <BindingsDialog id={binding.id} name={binding.name} kind="volume" onClose={() => setBinding(null)} />}
      {removing !== null && (
        <Confirm title={`Delete ${removing.name}?`} action="Delete the volume" onClose={() => setRemoving(null)}
          onConfirm={async () => {
            await unwrap(api.DELETE("/v1/admin/volumes/{id}", { params: { path: { id: removing.id }, query: teamParam() } }));
            list.reload();
          }}>
          <p>Its {formatNumber(removing.entries)} files are removed. This cannot be undone.</p>
        </Confirm>
      )}
    </>
  );
}

function VolumeForm({ current, onClose, onSaved }: { current: Volume | null; onClose: () => void; onSaved: () => void }) {
  const [name, setName] = useState(current?.name ?? "");
  const [size, setSize] = useState(String((current?.quota_bytes ?? GIB) / GIB));
  const { busy, problems, submit } = useSubmit(["name", "quota_bytes"], async () => {
    const gibibytes = readNumber(size);
    const quota = typeof gibibytes === "number" ? Math.round(gibibytes * GIB) : gibibytes;
    if (current === null) {
      const team = teamParam().team ?? session.value?.team?.name ?? teamName.value;
      await unwrap(api.POST("/v1/admin/volumes", { body: { name, quota_bytes: quota, team } }));
    } else {
      await unwrap(api.PATCH("/v1/admin/volumes/{id}", { params: { path: { id: current.id }, query: teamParam() }, body: { quota_bytes: quota } }));
    }
    onSaved();
  });
  return (
    <Dialog title={current === null ? "New volume" : `Volume ${current.name}`} onClose={onClose}>
      <form class="form" onSubmit={submit}>
        <TextField label="Name" name="name" required disabled={current !== null} value={name} onChange={setName} problems={problems} placeholder="results" hint="It is mounted at /data/NAME" />
        <TextField label="Most bytes, in GiB" name="quota_bytes" required value={size} onChange={setSize} problems={problems} inputMode="decimal" />
        <FormFoot problems={problems} busy={busy} action={current === null ? "Create" : "Save"} onCancel={onClose} />
      </form>
    </Dialog>
  );
}
