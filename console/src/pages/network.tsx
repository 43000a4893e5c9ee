// Network policies: what the programs of each sandbox reach.
import { useState } from "preact/hooks";
import { type Schemas, api, unwrap } from "../api/client";
import { useSandboxes } from "../api/lists";
import { hrefOf } from "../router";
import { mayDevelop } from "../session";
import { FormFoot, SelectField, TextField, readNumber, useSubmit } from "../ui/form";
import { formatBytes } from "../ui/format";
import { Icon } from "../ui/icons";
import { List } from "../ui/list";
import { Dialog, PageHead, toast } from "../ui/parts";
import { splitWords } from "./sandbox-form";

type Sandbox = Schemas["SandboxRecord"];
type Limits = Schemas["NetworkLimitsRecord"];

const LIMITS: [keyof Limits, string][] = [
  ["connections", "TCP connections at once"], ["half_open", "Connections being opened"], ["new_per_second", "New ones a second"],
  ["new_burst", "New ones at once"], ["udp_flows", "UDP flows at once"], ["dns_per_second", "DNS queries a second"],
  ["bytes_in_per_second", "Bytes in a second"], ["bytes_out_per_second", "Bytes out a second"], ["bytes_per_run", "Bytes of one execution"],
];

export default function NetworkPage() {
  const list = useSandboxes();
  const [editing, setEditing] = useState<Sandbox | null>(null);
  return (
    <>
      <PageHead title="Network policies" note="What the programs of each sandbox reach" />
      <List label="Network policies" query={list} keyOf={(item) => item.id}
        empty={{ icon: "network", title: "There is no sandbox yet", text: "Each sandbox has a network policy. Create a sandbox first.", action: <a class="button" href={hrefOf("/sandboxes", { create: "1" })}>Create a sandbox</a> }}
        columns={[
          { title: "Sandbox", primary: true, cell: (item) => item.name },
          { title: "Policy", cell: (item) => <span class={`badge ${item.network === "blocked" ? "good" : item.network === "allowlist" ? "live" : "warn"}`}>{item.network}</span> },
          { title: "Rules", cell: (item) => <span class="row">{item.network_allow.slice(0, 6).map((rule) => <span class="tag" key={rule}><span>{rule}</span></span>)}
            {item.network_allow.length > 6 && <span class="faint">+{item.network_allow.length - 6}</span>}{item.network_allow.length === 0 && "–"}</span> },
          { title: "Limits", cell: (item) => <span class="number muted">{item.network_limits.connections} connections{item.network_limits.bytes_per_run === null || item.network_limits.bytes_per_run === undefined ? "" : `, ${formatBytes(item.network_limits.bytes_per_run)} a run`}</span> },
        ]}
        {...(mayDevelop.value ? {
          actions: (item: Sandbox) => <button type="button" class="button quiet icon small" aria-label={`Edit the policy of ${item.name}`} onClick={() => setEditing(item)}><Icon name="edit" /></button>,
        } : {})} />
      {editing !== null && <PolicyForm sandbox={editing} onClose={() => setEditing(null)} onSaved={() => { setEditing(null); list.reload(); toast("Saved"); }} />}
    </>
  );
}

function PolicyForm({ sandbox, onClose, onSaved }: { sandbox: Sandbox; onClose: () => void; onSaved: () => void }) {
  const [network, setNetwork] = useState(sandbox.network);
  const [rules, setRules] = useState(sandbox.network_allow.join("\n"));
  const [limits, setLimits] = useState<Record<string, string>>(
    Object.fromEntries(LIMITS.map(([name]) => [name, String(sandbox.network_limits[name] ?? "")])),
  );
  const names = ["network", "network_allow", ...LIMITS.map(([name]) => `network_limits.${name}`)];
  const { busy, problems, submit } = useSubmit(names, async () => {
    const made = Object.fromEntries(LIMITS.filter(([name]) => (limits[name] ?? "") !== "").map(([name]) => [name, readNumber(limits[name] ?? "")]));
    const body = { network, network_allow: network === "allowlist" ? splitWords(rules) : [], network_limits: made };
    await unwrap(api.PATCH("/v1/admin/sandboxes/{id}", { params: { path: { id: sandbox.id } }, body }));
    onSaved();
  });
  return (
    <Dialog title={`Network of ${sandbox.name}`} wide onClose={onClose}>
      <form class="form" onSubmit={submit}>
        <SelectField label="Policy" name="network" value={network} onChange={setNetwork} problems={problems}
          options={[{ value: "blocked", text: "Blocked: only its own loopback" }, { value: "allowlist", text: "Allowlist: only what the rules name" }, { value: "unrestricted", text: "Unrestricted: the public internet" }]} />
        {network === "allowlist" && (
          <TextField label="Rules, one a line" name="network_allow" rows={6} value={rules} onChange={setRules} problems={problems}
            placeholder={"api.example.com\n*.example.com:443\n203.0.113.0/24:5432"} hint="A name, a name with a wildcard, an address or a range of addresses, each with ports if not all" />
        )}
        <details open={names.slice(2).some((name) => problems.fields[name] !== undefined)}>
          <summary>Limits</summary>
          <div class="form-row">
            {LIMITS.map(([name, label]) => (
              <TextField key={name} label={label} name={`network_limits.${name}`} value={limits[name] ?? ""} inputMode="numeric" placeholder="default"
                onChange={(value) => setLimits({ ...limits, [name]: value })} problems={problems} />
            ))}
          </div>
        </details>
        <FormFoot problems={problems} busy={busy} action="Save" onCancel={onClose} />
      </form>
    </Dialog>
  );
}
