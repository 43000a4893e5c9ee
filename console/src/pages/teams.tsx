// Teams, their plans and gates. Operators only.
import { useState } from "preact/hooks";
import { type Schemas, api, unwrap } from "../api/client";
import { chooseTeam, teamName } from "../session";
import { FormFoot, SelectField, TextField, readNumber, useSubmit } from "../ui/form";
import { Time, formatBytes } from "../ui/format";
import { Icon } from "../ui/icons";
import { List } from "../ui/list";
import { Confirm, Dialog, PageHead, toast } from "../ui/parts";
import { useQuery } from "../ui/query";

type Team = Schemas["TeamRecord"];
const POLICIES = [{ value: "", text: "as the fleet says" }, "allow", "ask", "deny"];
const SWITCH = [{ value: "", text: "as the fleet says" }, { value: "true", text: "on" }, { value: "false", text: "off" }];
const TOOLS = ["execute_code", "web_search", "fetch_url", "people_search"] as const;

export default function TeamsPage() {
  const list = useQuery(async () => (await unwrap(api.GET("/v1/admin/teams"))).teams, []);
  const [form, setForm] = useState<{ current: Team | null } | null>(null);
  const [removing, setRemoving] = useState<Team | null>(null);
  const create = <button type="button" class="button primary" onClick={() => setForm({ current: null })}><Icon name="plus" /> New team</button>;
  return (
    <>
      <PageHead title="Teams">{create}</PageHead>
      <List label="Teams" query={list} keyOf={(item) => item.id}
        empty={{ icon: "teams", title: "There is no team yet", text: "A team has its own sandboxes, keys, threads and budget.", action: create }}
        columns={[
          { title: "Name", primary: true, cell: (item) => <button type="button" class="link" onClick={() => setForm({ current: item })}>{item.name}</button> },
          { title: "Plan", cell: (item) => <span class="badge">{item.plan}</span> },
          { title: "Agents run code", cell: (item) => (item.agent_sandbox === null || item.agent_sandbox === undefined ? "as the fleet" : item.agent_sandbox ? "yes" : "no") },
          { title: "Storage", cell: (item) => <span class="number">{formatBytes(item.storage_used_bytes ?? 0)}{item.storage_budget_bytes === null || item.storage_budget_bytes === undefined ? "" : ` of ${formatBytes(item.storage_budget_bytes)}`}</span> },
          { title: "Created", cell: (item) => <Time at={item.created_at} form="short" /> },
        ]}
        actions={(item) => (
          <>
            {item.name !== teamName.value && <button type="button" class="button quiet small" onClick={() => { chooseTeam(item.name); toast(`You look at ${item.name}`); }}>Look at it</button>}
            <button type="button" class="button quiet icon small" aria-label={`Edit ${item.name}`} onClick={() => setForm({ current: item })}><Icon name="edit" /></button>
            <button type="button" class="button quiet icon small" aria-label={`Delete ${item.name}`} onClick={() => setRemoving(item)}><Icon name="trash" /></button>
          </>
        )} />
      {form !== null && <TeamForm current={form.current} onClose={() => setForm(null)} onSaved={() => { setForm(null); list.reload(); toast("Saved"); }} />}
      {removing !== null && (
        <Confirm title={`Delete ${removing.name}?`} action="Delete the team" onClose={() => setRemoving(null)}
          onConfirm={async () => {
            await unwrap(api.DELETE("/v1/admin/teams/{id}", { params: { path: { id: removing.id } } }));
            list.reload();
          }}>
          <p>A team that still has sandboxes or keys cannot be deleted.</p>
        </Confirm>
      )}
    </>
  );
}

function TeamForm({ current, onClose, onSaved }: { current: Team | null; onClose: () => void; onSaved: () => void }) {
  const show = (value: unknown) => (value === null || value === undefined ? "" : String(value));
  const [text, setText] = useState<Record<string, string>>({
    name: current?.name ?? "", plan: current?.plan ?? "free", max_concurrency: show(current?.max_concurrency), max_timeout_seconds: show(current?.max_timeout_seconds),
    monthly_credits: show(current?.monthly_credits), storage_bytes: show(current?.storage_bytes), agent_sandbox: show(current?.agent_sandbox),
    execute_code: show(current?.execute_code), web_search: show(current?.web_search), fetch_url: show(current?.fetch_url), people_search: show(current?.people_search),
  });
  const numbers = ["max_concurrency", "max_timeout_seconds", "monthly_credits", "storage_bytes"] as const;
  const { busy, problems, submit } = useSubmit(Object.keys(text), async () => {
    const plan = text.plan as Schemas["PlanName"];
    const limits = Object.fromEntries(numbers.map((name) => [name, (text[name] ?? "") === "" ? null : readNumber(text[name] ?? "")]));
    if (current === null) {
      const given = Object.fromEntries(Object.entries(limits).filter(([, value]) => value !== null));
      await unwrap(api.POST("/v1/admin/teams", { body: { name: text.name ?? "", plan, ...given } }));
    } else {
      const gates = Object.fromEntries(TOOLS.map((name) => [name, (text[name] ?? "") === "" ? null : text[name]])) as Partial<Schemas["UpdateTeam"]>;
      const agent = (text.agent_sandbox ?? "") === "" ? null : text.agent_sandbox === "true";
      const renamed = text.name === current.name ? {} : { name: text.name ?? "" };
      await unwrap(api.PATCH("/v1/admin/teams/{id}", { params: { path: { id: current.id } }, body: { plan, ...limits, ...gates, agent_sandbox: agent, ...renamed } }));
    }
    onSaved();
  });
  const set = (name: string) => (value: string) => setText({ ...text, [name]: value });
  const field = (name: string, label: string, extra: object = {}) => <TextField label={label} name={name} value={text[name] ?? ""} onChange={set(name)} problems={problems} {...extra} />;
  const pick = (name: string, label: string, options: (string | { value: string; text: string })[]) => <SelectField label={label} name={name} value={text[name] ?? ""} onChange={set(name)} options={options} problems={problems} />;
  return (
    <Dialog title={current === null ? "New team" : `Team ${current.name}`} wide onClose={onClose}>
      <form class="form" onSubmit={submit}>
        <div class="form-row">{field("name", "Name", { required: true })}{pick("plan", "Plan", ["free", "pro", "enterprise"])}</div>
        <div class="form-row">
          {field("max_concurrency", "Executions at once", { placeholder: "as the plan", inputMode: "numeric" })}
          {field("max_timeout_seconds", "Longest timeout in seconds", { placeholder: "as the plan", inputMode: "numeric" })}
          {field("monthly_credits", "Credits a month", { placeholder: "as the plan", inputMode: "decimal" })}
          {field("storage_bytes", "Storage in bytes", { placeholder: "as the plan", inputMode: "numeric" })}
        </div>
        {current !== null && (
          <>
            <h3>Agents</h3>
            <div class="form-row">
              {pick("agent_sandbox", "Agents may run code", SWITCH)}
              {TOOLS.map((name) => pick(name, name.replace("_", " "), POLICIES))}
            </div>
          </>
        )}
        <FormFoot problems={problems} busy={busy} action={current === null ? "Create" : "Save"} onCancel={onClose} />
      </form>
    </Dialog>
  );
}
