// The form of a sandbox. The server checks it; its complaints appear at the fields.
import { useState } from "preact/hooks";
import { type Schemas, api, unwrap } from "../api/client";
import { teamParam } from "../api/lists";
import { session, teamName } from "../session";
import { CheckField, FormFoot, SelectField, TextField, VariablesField, fromVariableRows, readNumber, toVariableRows, useSubmit } from "../ui/form";
import { Dialog } from "../ui/parts";
import { useQuery } from "../ui/query";

const FIELDS = [
  "name", "image", "cpu", "memory_mb", "disk_mb", "pids", "network", "network_allow", "profile", "substrate",
  "preload", "storage", "tools", "env_vars", "retention_days",
];

interface FormProps {
  sandbox: Schemas["SandboxRecord"] | null;
  onClose: () => void;
  onSaved: (name: string) => void;
}

/** Lines or words as a list. */
export function splitWords(text: string): string[] {
  return text.split(/[\s,]+/).filter((word) => word !== "");
}

function numberOrNull(text: string): number | null {
  return text.trim() === "" ? null : readNumber(text);
}

function useSandboxDraft(sandbox: Schemas["SandboxRecord"] | null) {
  const [draft, setDraft] = useState({
    name: sandbox?.name ?? "",
    image: sandbox?.image ?? "host",
    cpu: String(sandbox?.cpu ?? ""),
    memory: String(sandbox?.memory_mb ?? ""),
    disk: String(sandbox?.disk_mb ?? ""),
    pids: String(sandbox?.pids ?? ""),
    network: sandbox?.network ?? "blocked",
    allow: (sandbox?.network_allow ?? []).join("\n"),
    profile: sandbox?.profile ?? "standard",
    substrate: sandbox?.substrate ?? "native",
    preload: (sandbox?.preload ?? []).join(" "),
    storage: (sandbox?.storage ?? []).join(" "),
    tools: sandbox?.tools ?? [],
    variables: toVariableRows((sandbox?.env_vars ?? {}) as Record<string, string>, sandbox?.secret_env_vars ?? []),
    retainCode: sandbox?.retain_code ?? true,
    retention: String(sandbox?.retention_days ?? ""),
    template: sandbox?.template ?? true,
  });
  return { draft, change: (part: Partial<typeof draft>) => setDraft((old) => ({ ...old, ...part })) };
}

type SandboxDraft = ReturnType<typeof useSandboxDraft>["draft"];

function bodyOfDraft(draft: SandboxDraft): Schemas["UpdateSandbox"] {
  return {
    image: draft.image,
    cpu: numberOrNull(draft.cpu),
    memory_mb: numberOrNull(draft.memory),
    disk_mb: numberOrNull(draft.disk),
    pids: numberOrNull(draft.pids),
    network: draft.network,
    network_allow: draft.network === "allowlist" ? splitWords(draft.allow) : [],
    profile: draft.profile,
    substrate: draft.substrate,
    preload: splitWords(draft.preload),
    storage: splitWords(draft.storage),
    tools: draft.tools as NonNullable<Schemas["UpdateSandbox"]["tools"]>,
    env_vars: fromVariableRows(draft.variables),
    retain_code: draft.retainCode,
    retention_days: numberOrNull(draft.retention),
    template: draft.template,
  };
}

/** Absent fields get the defaults of the server. */
function dropNulls<T extends object>(body: T): T {
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null)) as T;
}

export function SandboxForm({ sandbox, onClose, onSaved }: FormProps) {
  const { draft, change } = useSandboxDraft(sandbox);
  const images = useQuery(
    async () => (await unwrap(api.GET("/v1/admin/images"))).images.flatMap((image) => image.names), [],
  );
  const { busy, problems, submit } = useSubmit(FIELDS, async () => {
    const body = bodyOfDraft(draft);
    if (sandbox === null) {
      const team = teamParam().team ?? session.value?.team?.name ?? teamName.value;
      await unwrap(api.POST("/v1/admin/sandboxes", { body: { ...dropNulls(body), name: draft.name, team } }));
    } else {
      const renamed = draft.name === sandbox.name ? {} : { name: draft.name };
      const kept = { ...dropNulls(body), retention_days: body.retention_days ?? null, ...renamed };
      await unwrap(api.PATCH("/v1/admin/sandboxes/{id}", { params: { path: { id: sandbox.id } }, body: kept }));
    }
    onSaved(draft.name);
  });
  const text = (name: string, label: string, key: keyof SandboxDraft, extra: object = {}) => (
    <TextField label={label} name={name} problems={problems} value={draft[key] as string} onChange={(value) => change({ [key]: value })} {...extra} />
  );
  return (
    <Dialog title={sandbox === null ? "New sandbox" : `Sandbox ${sandbox.name}`} wide onClose={onClose}>
      <form class="form" onSubmit={submit}>
        <div class="form-row">
          {text("name", "Name", "name", { required: true, placeholder: "data-analysis", hint: "Lower-case letters, digits and hyphens" })}
          {text("image", "Image", "image", { mono: true, list: ["host", ...(images.data ?? [])], hint: "host, or the name of an image that was pulled" })}
        </div>
        <div class="form-row">
          {text("cpu", "Cores", "cpu", { placeholder: "default", inputMode: "decimal" })}
          {text("memory_mb", "Memory in MB", "memory", { placeholder: "default", inputMode: "numeric" })}
          {text("disk_mb", "Disk in MB", "disk", { placeholder: "default", inputMode: "numeric" })}
          {text("pids", "Processes", "pids", { placeholder: "default", inputMode: "numeric" })}
        </div>
        <SelectField label="Network" name="network" problems={problems} value={draft.network} onChange={(network) => change({ network })}
          options={[
            { value: "blocked", text: "Blocked: only its own loopback" },
            { value: "allowlist", text: "Allowlist: only what the rules name" },
            { value: "unrestricted", text: "Unrestricted: the public internet" },
          ]} />
        {draft.network === "allowlist" && text("network_allow", "Rules, one a line", "allow", {
          rows: 4, placeholder: "api.example.com\n*.example.com:443\n203.0.113.0/24:5432",
        })}
        <VariablesField rows={draft.variables} onChange={(variables) => change({ variables })} problem={problems.fields.env_vars} />
        <details open={FIELDS.slice(8).some((name) => name !== "env_vars" && problems.fields[name] !== undefined)}>
          <summary>More</summary>
          <div class="form">
            <div class="form-row">
              <SelectField label="Profile" name="profile" problems={problems} value={draft.profile} onChange={(profile) => change({ profile })}
                options={[{ value: "standard", text: "Standard" }, { value: "strict", text: "Strict, for hostile tenants" }]} />
              <SelectField label="Built by" name="substrate" problems={problems} value={draft.substrate} onChange={(substrate) => change({ substrate })}
                options={["native", "oci:crun", "oci:runc", "oci:runsc"]} />
              {text("retention_days", "Keep records for days", "retention", { placeholder: "forever", inputMode: "numeric" })}
            </div>
            {text("storage", "Storage", "storage", { mono: true, placeholder: "company-data results:rw", hint: "Names of connections and volumes; add :rw to write" })}
            {text("preload", "Modules that interpreters import ahead", "preload", { mono: true, placeholder: "numpy pandas" })}
            <div class="row">
              {(["web_search", "fetch_url", "people_search"] as const).map((tool) => (
                <CheckField key={tool} label={tool.replace("_", " ")} checked={draft.tools.includes(tool)}
                  onChange={(on) => change({ tools: on ? [...draft.tools, tool] : draft.tools.filter((each) => each !== tool) })} />
              ))}
            </div>
            <CheckField label="Keep the code of executions" hint="Otherwise only its digest is kept, and the history cannot show it." checked={draft.retainCode} onChange={(retainCode) => change({ retainCode })} />
            <CheckField label="Fork interpreters from a template" hint="Starts programs faster." checked={draft.template} onChange={(template) => change({ template })} />
          </div>
        </details>
        <FormFoot problems={problems} busy={busy} action={sandbox === null ? "Create" : "Save"} onCancel={onClose} />
      </form>
    </Dialog>
  );
}
