// Credentials: secrets that requests of programs get outside of the sandbox, or that programs get.
import { useState } from "preact/hooks";
import { type Schemas, api, unwrap } from "../api/client";
import { nameOf, teamParam, useKeys, useSandboxes } from "../api/lists";
import { mayOwn, session, teamName } from "../session";
import { FormFoot, SelectField, TextField, useSubmit } from "../ui/form";
import { Time } from "../ui/format";
import { Icon } from "../ui/icons";
import { List } from "../ui/list";
import { Confirm, Dialog, PageHead, attempt, toast } from "../ui/parts";
import { useQuery } from "../ui/query";
import { splitWords } from "./sandbox-form";

type Credential = Schemas["CredentialRecord"];

export default function CredentialsPage() {
  const list = useQuery(
    async (signal) => (await unwrap(api.GET("/v1/admin/credentials", { params: { query: teamParam() }, signal }))).credentials, [teamName.value],
  );
  const sandboxes = useSandboxes();
  const keys = useKeys();
  const [form, setForm] = useState<{ current: Credential | null } | null>(null);
  const [removing, setRemoving] = useState<Credential | null>(null);
  const [binding, setBinding] = useState<string | null>(null);
  const create = mayOwn.value && <button type="button" class="button primary" onClick={() => setForm({ current: null })}><Icon name="plus" /> New credential</button>;
  const bound = list.data?.find((item) => item.id === binding);
  return (
    <>
      <PageHead title="Credentials">{create}</PageHead>
      <List label="Credentials" query={list} keyOf={(item) => item.id}
        empty={{ icon: "credentials", title: "There is no credential yet", text: "A brokered credential is added to requests outside of the sandbox, so that code can use it and never sees it.", action: create }}
        columns={[
          { title: "Name", primary: true, cell: (item) => item.name },
          { title: "Kind", cell: (item) => <span class={`badge ${item.visible_to_code ? "warn" : "good"}`}>{item.kind}</span> },
          { title: "Where", cell: (item) => <span class="mono wrap">{item.kind === "brokered" ? item.hosts.join(", ") : item.env ?? item.file ?? ""}</span> },
          { title: "Used by", cell: (item) => [...item.sandboxes.map((id) => nameOf(sandboxes.data, id)), ...item.keys.map((id) => nameOf(keys.data, id))].join(", ") || "–" },
          { title: "Last used", cell: (item) => <Time at={item.last_used_at} form="ago" /> },
        ]}
        {...(mayOwn.value ? {
          actions: (item: Credential) => (
            <>
              <button type="button" class="button quiet small" onClick={() => setBinding(item.id)}>Uses</button>
              <button type="button" class="button quiet icon small" aria-label={`Edit ${item.name}`} onClick={() => setForm({ current: item })}><Icon name="edit" /></button>
              <button type="button" class="button quiet icon small" aria-label={`Delete ${item.name}`} onClick={() => setRemoving(item)}><Icon name="trash" /></button>
            </>
          ),
        } : {})} />
      {form !== null && <CredentialForm current={form.current} onClose={() => setForm(null)} onSaved={() => { setForm(null); list.reload(); toast("Saved"); }} />}
      {bound !== undefined && <UsesDialog credential={bound} onClose={() => setBinding(null)} onChanged={list.reload} />}
      {removing !== null && (
        <Confirm title={`Delete ${removing.name}?`} action="Delete the credential" onClose={() => setRemoving(null)}
          onConfirm={async () => {
            await unwrap(api.DELETE("/v1/admin/credentials/{id}", { params: { path: { id: removing.id } } }));
            list.reload();
          }}>
          <p>Executions that start from now on do not have it.</p>
        </Confirm>
      )}
    </>
  );
}

function UsesDialog({ credential, onClose, onChanged }: { credential: Credential; onClose: () => void; onChanged: () => void }) {
  const sandboxes = useSandboxes();
  const keys = useKeys();
  const toggle = (target: Schemas["CredentialTarget"], on: boolean) => attempt(async () => {
    const options = { params: { path: { id: credential.id } }, body: target };
    await unwrap(on ? api.POST("/v1/admin/credentials/{id}/bind", options) : api.POST("/v1/admin/credentials/{id}/unbind", options));
    onChanged();
  });
  return (
    <Dialog title={`Who uses ${credential.name}`} onClose={onClose}>
      <div class="stack">
        <fieldset class="variables"><legend class="field-label">Sandboxes</legend>
          {(sandboxes.data ?? []).map((each) => (
            <label class="check" key={each.id}><input type="checkbox" checked={credential.sandboxes.includes(each.id)} onChange={(event) => toggle({ sandbox: each.id }, event.currentTarget.checked)} /> {each.name}</label>
          ))}
        </fieldset>
        <fieldset class="variables"><legend class="field-label">Keys</legend>
          {(keys.data ?? []).filter((each) => (each.revoked_at ?? null) === null).map((each) => (
            <label class="check" key={each.id}><input type="checkbox" checked={credential.keys.includes(each.id)} onChange={(event) => toggle({ key: each.id }, event.currentTarget.checked)} /> {each.name}</label>
          ))}
        </fieldset>
      </div>
    </Dialog>
  );
}

function CredentialForm({ current, onClose, onSaved }: { current: Credential | null; onClose: () => void; onSaved: () => void }) {
  const [kind, setKind] = useState<Schemas["CredentialKind"]>(current?.kind ?? "brokered");
  const [text, setText] = useState<Record<string, string>>({
    name: current?.name ?? "", value: "", form: current?.form ?? "bearer", hosts: (current?.hosts ?? []).join("\n"),
    methods: (current?.methods ?? []).join(" "), paths: (current?.paths ?? []).join(" "), env: current?.env ?? "", file: "",
  });
  const names = ["name", "value", "form", "hosts", "methods", "paths", "env", "file", "kind"];
  const { busy, problems, submit } = useSubmit(names, async () => {
    const words = (name: string) => splitWords(text[name] ?? "");
    const listOf = (name: string) => (words(name).length === 0 ? {} : { [name]: words(name) });
    const rules = kind === "brokered"
      ? { form: text.form ?? "", hosts: words("hosts"), ...listOf("methods"), ...listOf("paths"), ...(text.env === "" ? {} : { env: text.env }) }
      : { ...(text.env === "" ? {} : { env: text.env }), ...(text.file === "" ? {} : { file: text.file }) };
    if (current === null) {
      const team = teamParam().team ?? session.value?.team?.name ?? teamName.value;
      await unwrap(api.POST("/v1/admin/credentials", { body: { kind, team, name: text.name ?? "", value: text.value ?? "", ...rules } }));
    } else {
      const body = { ...rules, ...(text.value === "" ? {} : { value: text.value }) };
      await unwrap(api.PATCH("/v1/admin/credentials/{id}", { params: { path: { id: current.id } }, body }));
    }
    onSaved();
  });
  const field = (name: string, label: string, extra: object = {}) => (
    <TextField label={label} name={name} value={text[name] ?? ""} onChange={(value) => setText({ ...text, [name]: value })} problems={problems} {...extra} />
  );
  return (
    <Dialog title={current === null ? "New credential" : `Credential ${current.name}`} onClose={onClose}>
      <form class="form" onSubmit={submit}>
        {field("name", "Name", { required: true, disabled: current !== null })}
        <SelectField label="Kind" name="kind" value={kind} onChange={(value) => setKind(value as Schemas["CredentialKind"])} disabled={current !== null} problems={problems}
          options={[{ value: "brokered", text: "Brokered: code never sees it" }, { value: "injected", text: "Injected: code gets the value" }]} />
        {field("value", "Value", { type: "password", required: current === null, placeholder: current === null ? "" : "stored; type to replace" })}
        {kind === "brokered" ? (
          <>
            {field("hosts", "Hosts, one a line", { rows: 2, placeholder: "api.example.com" })}
            {field("form", "Form", { hint: "bearer, basic, header NAME or query NAME" })}
            <div class="form-row">
              {field("methods", "Only these methods", { placeholder: "GET POST" })}
              {field("paths", "Only below these paths", { placeholder: "/v1/" })}
            </div>
            {field("env", "Variable with the placeholder", { mono: true })}
          </>
        ) : (
          <div class="form-row">
            {field("env", "Environment variable", { mono: true, placeholder: "API_TOKEN" })}
            {field("file", "File in /run/secrets", { mono: true })}
          </div>
        )}
        <FormFoot problems={problems} busy={busy} action={current === null ? "Create" : "Save"} onCancel={onClose} />
      </form>
    </Dialog>
  );
}
