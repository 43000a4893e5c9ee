// People who sign in: their team and role.
import { useState } from "preact/hooks";
import { type Schemas, api, unwrap } from "../api/client";
import { teamParam } from "../api/lists";
import { isOperator, mayOwn, session, teamName } from "../session";
import { CheckField, FormFoot, SelectField, TextField, useSubmit } from "../ui/form";
import { Time } from "../ui/format";
import { Icon } from "../ui/icons";
import { List } from "../ui/list";
import { Confirm, Dialog, PageHead, toast } from "../ui/parts";
import { useQuery } from "../ui/query";

type Member = Schemas["MemberRecord"];
type Role = Schemas["RoleName"];

export default function MembersPage() {
  const list = useQuery(
    async (signal) => (await unwrap(api.GET("/v1/admin/members", { params: { query: teamParam() }, signal }))).members, [teamName.value],
  );
  const [form, setForm] = useState<{ current: Member | null } | null>(null);
  const [removing, setRemoving] = useState<Member | null>(null);
  const create = mayOwn.value && <button type="button" class="button primary" onClick={() => setForm({ current: null })}><Icon name="plus" /> New member</button>;
  return (
    <>
      <PageHead title="Members">{create}</PageHead>
      <List label="Members" query={list} keyOf={(item) => item.id}
        empty={{ icon: "teams", title: "Nobody but operators can sign in yet", text: "Add people of the team: owners, developers, and viewers who change nothing.", action: create }}
        columns={[
          { title: "Name", primary: true, cell: (item) => item.name },
          { title: "Role", cell: (item) => <span class="badge">{item.role}</span> },
          { title: "E-mail", cell: (item) => <span class="wrap">{item.email ?? "–"}</span> },
          { title: "Signs in with", cell: (item) => [item.has_password ? "password" : "", item.totp ? "code" : "", item.email !== null && item.email !== undefined ? "single sign-on" : ""].filter((text) => text !== "").join(", ") || "–" },
          { title: "Last sign-in", cell: (item) => <Time at={item.last_sign_in_at} form="ago" /> },
          { title: "State", cell: (item) => item.disabled ? <span class="badge warn">disabled</span> : <span class="badge good">active</span> },
        ]}
        {...(mayOwn.value ? {
          actions: (item: Member) => (
            <>
              <button type="button" class="button quiet icon small" aria-label={`Edit ${item.name}`} onClick={() => setForm({ current: item })}><Icon name="edit" /></button>
              <button type="button" class="button quiet icon small" aria-label={`Remove ${item.name}`} onClick={() => setRemoving(item)}><Icon name="trash" /></button>
            </>
          ),
        } : {})} />
      {form !== null && <MemberForm current={form.current} onClose={() => setForm(null)} onSaved={() => { setForm(null); list.reload(); toast("Saved"); }} />}
      {removing !== null && (
        <Confirm title={`Remove ${removing.name}?`} action="Remove the member" onClose={() => setRemoving(null)}
          onConfirm={async () => {
            await unwrap(api.DELETE("/v1/admin/members/{id}", { params: { path: { id: removing.id } } }));
            list.reload();
          }}>
          <p>Their sessions end at once. What they did stays in the audit log.</p>
        </Confirm>
      )}
    </>
  );
}

function MemberForm({ current, onClose, onSaved }: { current: Member | null; onClose: () => void; onSaved: () => void }) {
  const [name, setName] = useState(current?.name ?? "");
  const [role, setRole] = useState<Role>(current?.role ?? "developer");
  const [email, setEmail] = useState(current?.email ?? "");
  const [password, setPassword] = useState("");
  const [disabled, setDisabled] = useState(current?.disabled ?? false);
  const [removeTotp, setRemoveTotp] = useState(false);
  const roles: { value: Role; text: string }[] = [
    { value: "viewer", text: "Viewer: reads" }, { value: "developer", text: "Developer: runs and configures" }, { value: "owner", text: "Owner: also members and secrets" },
    ...(isOperator.value ? [{ value: "operator" as const, text: "Operator: everything, all teams" }] : []),
  ];
  const { busy, problems, submit } = useSubmit(["name", "role", "email", "password"], async () => {
    const shared = { role, ...(password === "" ? {} : { password }) };
    if (current === null) {
      const team = role === "operator" ? {} : { team: teamParam().team ?? session.value?.team?.name ?? teamName.value };
      await unwrap(api.POST("/v1/admin/members", { body: { ...shared, ...team, name, ...(email === "" ? {} : { email }) } }));
    } else {
      const body = { ...shared, disabled, email: email === "" ? null : email, ...(removeTotp ? { remove_totp: true } : {}) };
      await unwrap(api.PATCH("/v1/admin/members/{id}", { params: { path: { id: current.id } }, body }));
    }
    onSaved();
  });
  return (
    <Dialog title={current === null ? "New member" : `Member ${current.name}`} onClose={onClose}>
      <form class="form" onSubmit={submit}>
        <TextField label="Name" name="name" required disabled={current !== null} value={name} onChange={setName} problems={problems} />
        <SelectField label="Role" name="role" value={role} onChange={(value) => setRole(value as Role)} options={roles} problems={problems} />
        <TextField label="E-mail" name="email" type="email" value={email} onChange={setEmail} problems={problems} hint="Single sign-on finds the member by it." />
        <TextField label="Password" name="password" type="password" value={password} onChange={setPassword} problems={problems} autoComplete="new-password"
          placeholder={current?.has_password === true ? "stored; type to replace" : ""} hint="12 to 256 characters" />
        {current !== null && <CheckField label="Disabled" hint="They cannot sign in, and their sessions end." checked={disabled} onChange={setDisabled} />}
        {current?.totp === true && <CheckField label="Remove the second factor" checked={removeTotp} onChange={setRemoveTotp} />}
        <FormFoot problems={problems} busy={busy} action={current === null ? "Create" : "Save"} onCancel={onClose} />
      </form>
    </Dialog>
  );
}
