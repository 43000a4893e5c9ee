// Storage connections: buckets that programs see below /data.
import { useState } from "preact/hooks";
import { type Schemas, api, unwrap } from "../api/client";
import { teamParam } from "../api/lists";
import { mayOwn, session, teamName } from "../session";
import { CheckField, FormFoot, SelectField, TextField, useSubmit } from "../ui/form";
import { Time } from "../ui/format";
import { Icon } from "../ui/icons";
import { List } from "../ui/list";
import { Confirm, Dialog, PageHead, attempt, toast } from "../ui/parts";
import { useQuery } from "../ui/query";
import { BindingsDialog } from "./bindings";

type Connection = Schemas["ConnectionRecord"];

const SECRET_PARTS: Record<string, [string, string][]> = {
  s3: [["access_key_id", "Access key id"], ["secret_access_key", "Secret access key"], ["session_token", "Session token"]],
  gcs: [["service_account_key", "Service account key (JSON)"]],
  azure: [["account_key", "Account key"]],
};

export default function StoragePage() {
  const list = useQuery(
    async (signal) => (await unwrap(api.GET("/v1/admin/storage", { params: { query: teamParam() }, signal }))).storage, [teamName.value],
  );
  const [form, setForm] = useState<{ current: Connection | null } | null>(null);
  const [removing, setRemoving] = useState<Connection | null>(null);
  const [binding, setBinding] = useState<Connection | null>(null);
  const create = mayOwn.value && <button type="button" class="button primary" onClick={() => setForm({ current: null })}><Icon name="plus" /> New connection</button>;
  const check = (item: Connection) => attempt(async () => {
    const result = await unwrap(api.POST("/v1/admin/storage/{id}/check", { params: { path: { id: item.id }, query: teamParam() } }));
    const bad = result.steps.find((step) => !step.ok);
    toast(result.ok ? `${item.name}: list, write, read and delete work` : `${item.name}: ${bad?.step} failed: ${bad?.message ?? ""}`, !result.ok);
  });
  return (
    <>
      <PageHead title="Storage" note="Buckets that programs see below /data">{create}</PageHead>
      <List label="Storage connections" query={list} keyOf={(item) => item.id}
        empty={{ icon: "storage", title: "There is no connection yet", text: "Connect a bucket of S3, Google Cloud Storage or Azure, and let sandboxes and keys use it.", action: create }}
        columns={[
          { title: "Name", primary: true, cell: (item) => item.name },
          { title: "Kind", cell: (item) => item.kind },
          { title: "Bucket", cell: (item) => <span class="mono wrap">{item.bucket}{item.prefix === "" ? "" : `/${item.prefix}`}</span> },
          { title: "Access", cell: (item) => (item.read_only ? "read only" : "read and write") },
          { title: "Created", cell: (item) => <Time at={item.created_at} form="short" /> },
        ]}
        {...(mayOwn.value ? {
          actions: (item: Connection) => (
            <>
              <button type="button" class="button quiet small" onClick={() => check(item)}>Check</button>
              <button type="button" class="button quiet small" onClick={() => setBinding(item)}>Uses</button>
              <button type="button" class="button quiet icon small" aria-label={`Edit ${item.name}`} onClick={() => setForm({ current: item })}><Icon name="edit" /></button>
              <button type="button" class="button quiet icon small" aria-label={`Delete ${item.name}`} onClick={() => setRemoving(item)}><Icon name="trash" /></button>
            </>
          ),
        } : {})} />
      {form !== null && <ConnectionForm current={form.current} onClose={() => setForm(null)} onSaved={() => { setForm(null); list.reload(); toast("Saved"); }} />}
      {binding !== null && <BindingsDialog id={binding.id} name={binding.name} kind="connection" onClose={() => setBinding(null)} />}
      {removing !== null && (
        <Confirm title={`Delete ${removing.name}?`} action="Delete the connection" onClose={() => setRemoving(null)}
          onConfirm={async () => {
            await unwrap(api.DELETE("/v1/admin/storage/{id}", { params: { path: { id: removing.id }, query: teamParam() } }));
            list.reload();
          }}>
          <p>The bucket itself is not touched.</p>
        </Confirm>
      )}
    </>
  );
}

interface FormProps {
  current: Connection | null;
  onClose: () => void;
  onSaved: () => void;
}
function ConnectionForm({ current, onClose, onSaved }: FormProps) {
  const [kind, setKind] = useState(current?.kind ?? "s3");
  const [text, setText] = useState<Record<string, string>>({
    name: current?.name ?? "", bucket: current?.bucket ?? "", prefix: current?.prefix ?? "", endpoint: current?.endpoint ?? "",
    region: current?.region ?? "", account: current?.account ?? "",
  });
  const [secrets, setSecrets] = useState<Record<string, string>>({});
  const [readOnly, setReadOnly] = useState(current?.read_only ?? false);
  const [isPrivate, setIsPrivate] = useState(current?.allow_private_endpoint ?? false);
  const [check, setCheck] = useState(true);
  const parts = (SECRET_PARTS[kind] ?? []).map(([name]) => name);
  const names = ["name", "kind", "bucket", "prefix", "endpoint", "region", "account", "credentials", ...parts];
  const { busy, problems, submit } = useSubmit(names, async () => {
    const optional = Object.fromEntries(["prefix", "endpoint", "region", "account"].filter((name) => (text[name] ?? "") !== "").map((name) => [name, text[name]]));
    const given = Object.fromEntries(Object.entries(secrets).filter(([, value]) => value !== ""));
    const shared = { ...optional, read_only: readOnly, allow_private_endpoint: isPrivate, check, ...(Object.keys(given).length > 0 ? { credentials: given } : {}) };
    const bucket = text.bucket ?? "";
    if (current === null) {
      const team = teamParam().team ?? session.value?.team?.name ?? teamName.value;
      await unwrap(api.POST("/v1/admin/storage", { body: { ...shared, kind, bucket, name: text.name ?? "", team } }));
    } else {
      await unwrap(api.PATCH("/v1/admin/storage/{id}", { params: { path: { id: current.id }, query: teamParam() }, body: { ...shared, bucket } }));
    }
    onSaved();
  });
  const field = (name: string, label: string, extra: object = {}) => (
    <TextField label={label} name={name} value={text[name] ?? ""} onChange={(value) => setText({ ...text, [name]: value })} problems={problems} {...extra} />
  );
  return (
    <Dialog title={current === null ? "New connection" : `Connection ${current.name}`} wide onClose={onClose}>
      <form class="form" onSubmit={submit}>
        <div class="form-row">
          {field("name", "Name", { required: true, disabled: current !== null, placeholder: "company-data", hint: "It is mounted at /data/NAME" })}
          <SelectField label="Kind" name="kind" value={kind} onChange={setKind} problems={problems} disabled={current !== null}
            options={[{ value: "s3", text: "S3 and compatible" }, { value: "gcs", text: "Google Cloud Storage" }, { value: "azure", text: "Azure Blob Storage" }]} />
        </div>
        <div class="form-row">
          {field("bucket", kind === "azure" ? "Container" : "Bucket", { required: true, mono: true })}
          {field("prefix", "Only below this prefix", { mono: true, placeholder: "reports/" })}
        </div>
        <div class="form-row">
          {field("endpoint", "Endpoint", { mono: true, placeholder: "that of the provider" })}
          {kind === "s3" && field("region", "Region", { placeholder: "us-east-1" })}
          {kind === "azure" && field("account", "Storage account", { required: true })}
        </div>
        {(SECRET_PARTS[kind] ?? []).map(([name, label]) => (
          <TextField key={name} label={label} name={name} type="password" value={secrets[name] ?? ""} onChange={(value) => setSecrets({ ...secrets, [name]: value })} problems={problems}
            placeholder={current?.credentials.includes(name) === true ? "stored; type to replace all parts" : ""} />
        ))}
        {problems.fields.credentials !== undefined && <p class="problem" role="alert">{problems.fields.credentials}</p>}
        <CheckField label="Read only" hint="No use may write." checked={readOnly} onChange={setReadOnly} />
        <CheckField label="The endpoint may be private" hint="Allows a private address and plain HTTP." checked={isPrivate} onChange={setIsPrivate} />
        <CheckField label="Try it before it is saved" checked={check} onChange={setCheck} />
        <FormFoot problems={problems} busy={busy} action={current === null ? "Create" : "Save"} onCancel={onClose} />
      </form>
    </Dialog>
  );
}
