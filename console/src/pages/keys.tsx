// API keys. The secret of a key is shown once.
import { useState } from "preact/hooks";
import { type Schemas, api, unwrap } from "../api/client";
import { nameOf, teamParam, useKeys, useSandboxes } from "../api/lists";
import { hrefOf, place, setQuery } from "../router";
import { mayDevelop, session, teamName } from "../session";
import { CheckField, FormFoot, SelectField, TextField, VariablesField, fromVariableRows, toVariableRows, useSubmit } from "../ui/form";
import { Status, Time } from "../ui/format";
import { Icon } from "../ui/icons";
import { List } from "../ui/list";
import { Confirm, CopyLine, Dialog, PageHead, toast } from "../ui/parts";

type Key = Schemas["KeyRecord"];

export default function KeysPage() {
  const list = useKeys();
  const sandboxes = useSandboxes();
  const creating = place.value.query.get("create") !== null;
  const [editing, setEditing] = useState<Key | null>(null);
  const [revoking, setRevoking] = useState<Key | null>(null);
  const [created, setCreated] = useState<Schemas["CreatedKey"] | null>(null);
  const close = () => {
    setEditing(null);
    setQuery({ create: null });
  };
  const create = mayDevelop.value && (
    <button type="button" class="button primary" onClick={() => setQuery({ create: "1" })}><Icon name="plus" /> New key</button>
  );
  return (
    <>
      <PageHead title="Keys">{create}</PageHead>
      <List label="Keys" query={list} keyOf={(item) => item.id}
        empty={{ icon: "keys", title: "There is no key yet", text: "A key lets a program run code in one sandbox.", action: create }}
        columns={[
          { title: "Name", primary: true, cell: (item) => item.name },
          { title: "Key", cell: (item) => <code>{item.prefix}…</code> },
          { title: "Sandbox", cell: (item) => nameOf(sandboxes.data, item.sandbox_id) },
          { title: "May approve", cell: (item) => (item.may_approve ? "yes" : "no") },
          { title: "Webhook", cell: (item) => <span class="wrap">{item.webhook_url ?? "–"}</span> },
          { title: "Created", cell: (item) => <Time at={item.created_at} form="short" /> },
          { title: "State", cell: (item) => item.revoked_at === null || item.revoked_at === undefined ? <span class="badge good">active</span> : <Status value="revoked" /> },
        ]}
        actions={(item) => (
          <>
            <a class="button quiet small" href={hrefOf("/executions", { key: item.id })}>Executions</a>
            {mayDevelop.value && (item.revoked_at ?? null) === null && (
              <>
                <button type="button" class="button quiet icon small" aria-label={`Edit ${item.name}`} onClick={() => setEditing(item)}><Icon name="edit" /></button>
                <button type="button" class="button quiet small" aria-label={`Revoke ${item.name}`} onClick={() => setRevoking(item)}>Revoke</button>
              </>
            )}
          </>
        )} />
      {(creating || editing !== null) && mayDevelop.value && sandboxes.data !== undefined && (
        <KeyForm key={editing?.id ?? "new"} current={editing} sandboxes={sandboxes.data} onClose={close}
          onSaved={(made) => { close(); list.reload(); if (made === null) toast("Saved"); else setCreated(made); }} />
      )}
      {created !== null && <SecretDialog created={created} onClose={() => setCreated(null)} />}
      {revoking !== null && (
        <Confirm title={`Revoke ${revoking.name}?`} action="Revoke the key" onClose={() => setRevoking(null)}
          onConfirm={async () => {
            await unwrap(api.DELETE("/v1/admin/keys/{id}", { params: { path: { id: revoking.id } } }));
            list.reload();
          }}>
          <p>Requests with this key are refused from now on. This cannot be undone.</p>
        </Confirm>
      )}
    </>
  );
}

function SecretDialog({ created, onClose }: { created: Schemas["CreatedKey"]; onClose: () => void }) {
  const curl = `curl -sS ${location.origin}/v1/sandbox/execute -H "Authorization: Bearer ${created.key}" -H "Content-Type: application/json" -d '{"code": "print(1 + 1)"}'`;
  return (
    <Dialog title={`Key ${created.name}`} onClose={onClose}>
      <div class="stack">
        <div class="notice warn">This is the only time that the key is shown. Store it now.</div>
        <CopyLine text={created.key} label="Copy the key" />
        <div class="field"><span class="field-label">Try it</span><CopyLine text={curl} label="Copy the command" /></div>
        <div class="form-foot"><button type="button" class="button primary" onClick={onClose}>I have stored it</button></div>
      </div>
    </Dialog>
  );
}

interface FormProps {
  current: Key | null;
  sandboxes: Schemas["SandboxRecord"][];
  onClose: () => void;
  onSaved: (made: Schemas["CreatedKey"] | null) => void;
}
function KeyForm({ current, sandboxes, onClose, onSaved }: FormProps) {
  const [name, setName] = useState(current?.name ?? "");
  const [sandbox, setSandbox] = useState(current?.sandbox_id ?? sandboxes[0]?.id ?? "");
  const [webhook, setWebhook] = useState(current?.webhook_url ?? "");
  const [secret, setSecret] = useState("");
  const [mayApprove, setMayApprove] = useState(current?.may_approve ?? false);
  const [variables, setVariables] = useState(toVariableRows((current?.env_vars ?? {}) as Record<string, string>, current?.secret_env_vars ?? []));
  const { busy, problems, submit } = useSubmit(["name", "sandbox", "webhook_url", "webhook_secret", "env_vars"], async () => {
    const shared = { sandbox, may_approve: mayApprove, env_vars: fromVariableRows(variables), ...(secret === "" ? {} : { webhook_secret: secret }) };
    if (current === null) {
      const team = teamParam().team ?? session.value?.team?.name ?? teamName.value;
      const body = { ...shared, name, team, ...(webhook === "" ? {} : { webhook_url: webhook }) };
      onSaved(await unwrap(api.POST("/v1/admin/keys", { body })));
      return;
    }
    const body = { ...shared, webhook_url: webhook === "" ? null : webhook, ...(name === current.name ? {} : { name }) };
    await unwrap(api.PATCH("/v1/admin/keys/{id}", { params: { path: { id: current.id } }, body }));
    onSaved(null);
  });
  return (
    <Dialog title={current === null ? "New key" : `Key ${current.name}`} onClose={onClose}>
      <form class="form" onSubmit={submit}>
        <TextField label="Name" name="name" required value={name} onChange={setName} problems={problems} placeholder="my-agent" hint="Lower-case letters, digits and hyphens" />
        <SelectField label="Sandbox" name="sandbox" value={sandbox} onChange={setSandbox} problems={problems}
          options={sandboxes.map((each) => ({ value: each.id, text: each.name }))} />
        <details open={webhook !== "" || problems.fields.webhook_url !== undefined}>
          <summary>Webhook</summary>
          <div class="form">
            <TextField label="URL for results" name="webhook_url" value={webhook} onChange={setWebhook} problems={problems} placeholder="https://hooks.example.com/cloche" />
            <TextField label="Secret that signs deliveries" name="webhook_secret" type="password" value={secret} onChange={setSecret} problems={problems}
              placeholder={current?.webhook_signed === true ? "stored; type to replace" : ""} />
          </div>
        </details>
        <details open={variables.length > 0}>
          <summary>Variables</summary>
          <VariablesField rows={variables} onChange={setVariables} problem={problems.fields.env_vars} />
        </details>
        <CheckField label="May approve calls of other keys" hint="Its holder can answer approvals that agents of the team ask for." checked={mayApprove} onChange={setMayApprove} />
        <FormFoot problems={problems} busy={busy} action={current === null ? "Create" : "Save"} onCancel={onClose} />
      </form>
    </Dialog>
  );
}
