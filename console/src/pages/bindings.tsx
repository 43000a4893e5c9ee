// What may use a connection or a volume: sandboxes and keys.
import { useState } from "preact/hooks";
import { type Schemas, api, unwrap } from "../api/client";
import { teamParam, useKeys, useSandboxes } from "../api/lists";
import { CheckField, FormFoot, SelectField, TextField, useSubmit } from "../ui/form";
import { Dialog, Failed, Loading, attempt } from "../ui/parts";
import { useQuery } from "../ui/query";

type Binding = Schemas["BindingRecord"];

interface BindingsProps {
  id: string;
  name: string;
  kind: "connection" | "volume";
  onClose: () => void;
}
export function BindingsDialog({ id, name, kind, onClose }: BindingsProps) {
  const params = { path: { id }, query: teamParam() };
  const bindings = useQuery(async () => {
    const record = kind === "connection"
      ? await unwrap(api.GET("/v1/admin/storage/{id}", { params }))
      : await unwrap(api.GET("/v1/admin/volumes/{id}", { params }));
    return record.bindings ?? [];
  }, [id]);
  const sandboxes = useSandboxes();
  const keys = useKeys();
  const [user, setUser] = useState("");
  const [path, setPath] = useState("");
  const [write, setWrite] = useState(false);
  const users = [
    ...(sandboxes.data ?? []).map((each) => ({ value: `sandbox ${each.id}`, text: `sandbox ${each.name}` })),
    ...(keys.data ?? []).filter((each) => (each.revoked_at ?? null) === null).map((each) => ({ value: `key ${each.id}`, text: `key ${each.name}` })),
  ];
  const chosen = user === "" ? users[0]?.value ?? "" : user;
  const targetOf = (text: string) => {
    const [what, target] = text.split(" ");
    return what === "key" ? { key: target ?? "" } : { sandbox: target ?? "" };
  };
  const { busy, problems, submit } = useSubmit(["sandbox", "key", "path"], async () => {
    const body = { ...targetOf(chosen), read_write: write, ...(path === "" ? {} : { path }) };
    await unwrap(api.POST("/v1/admin/storage/{id}/bind", { params, body }));
    bindings.reload();
  });
  const unbind = (binding: Binding) => attempt(async () => {
    const target = binding.key_id === null || binding.key_id === undefined ? { sandbox: binding.sandbox_id ?? "" } : { key: binding.key_id };
    await unwrap(api.POST("/v1/admin/storage/{id}/unbind", { params, body: { ...target, ...(binding.path === "" ? {} : { path: binding.path }) } }));
    bindings.reload();
  });
  return (
    <Dialog title={`Who uses ${name}`} onClose={onClose}>
      <div class="stack">
        {bindings.error !== null && <Failed error={bindings.error} retry={bindings.reload} />}
        {bindings.data === undefined && bindings.error === null && <Loading lines={2} />}
        {bindings.data?.length === 0 && <p class="muted">Nothing uses it yet.</p>}
        {bindings.data?.map((binding) => (
          <div class="row" key={`${binding.user} ${binding.path}`}>
            <span class="grow wrap">{binding.user} {binding.path !== "" && <code>/{binding.path}</code>} <span class="badge">{binding.read_only ? "read only" : "read and write"}</span></span>
            <button type="button" class="button small" onClick={() => unbind(binding)}>Remove</button>
          </div>
        ))}
        <form class="form" onSubmit={submit}>
          <div class="form-row">
            <SelectField label="Sandbox or key" name="sandbox" value={chosen} onChange={setUser} options={users} problems={problems} />
            <TextField label="Only below this path" name="path" mono value={path} onChange={setPath} problems={problems} />
          </div>
          <CheckField label="May write" checked={write} onChange={setWrite} />
          <FormFoot problems={problems} busy={busy} action="Let it use this" />
        </form>
      </div>
    </Dialog>
  );
}
