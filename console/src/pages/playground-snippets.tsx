// The request of the playground as a program of the caller.
import { useState } from "preact/hooks";
import { Editor } from "../ui/editor";
import { Icon } from "../ui/icons";
import { CopyButton, Dialog, Tabs } from "../ui/parts";
import { type Draft, bodyOf } from "./playground-draft";

type Form = "curl" | "python" | "javascript";

/** A text in single quotes of a POSIX shell. */
function quoteShell(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** JSON as a literal of Python. */
function toPython(value: unknown, indent: string): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map((item) => toPython(item, indent)).join(", ")}]`;
  if (typeof value === "object") {
    const inner = `${indent}    `;
    const lines = Object.entries(value as object).map(([name, item]) => `${inner}${JSON.stringify(name)}: ${toPython(item, inner)},\n`);
    return `{\n${lines.join("")}${indent}}`;
  }
  return JSON.stringify(value);
}

export function writeSnippet(form: Form, draft: Draft, origin: string): string {
  const url = `${origin}/v1/sandbox/execute`;
  const body = bodyOf(draft);
  if (form === "curl") {
    return `curl -sS ${url} \\\n  -H "Authorization: Bearer $CLOCHE_API_KEY" \\\n  -H "Content-Type: application/json" \\\n  -d ${quoteShell(JSON.stringify(body, null, 2))}\n`;
  }
  if (form === "python") {
    return `import os\n\nimport requests\n\nresponse = requests.post(\n    "${url}",\n    headers={"Authorization": f"Bearer {os.environ['CLOCHE_API_KEY']}"},\n    json=${toPython(body, "    ")},\n    timeout=120,\n)\nresponse.raise_for_status()\nprint(response.json()["stdout"])\n`;
  }
  const json = JSON.stringify(body, null, 2).replaceAll("\n", "\n  ");
  return `const response = await fetch("${url}", {\n  method: "POST",\n  headers: {\n    Authorization: \`Bearer \${process.env.CLOCHE_API_KEY}\`,\n    "Content-Type": "application/json",\n  },\n  body: JSON.stringify(${json}),\n});\nif (!response.ok) throw new Error(await response.text());\nconsole.log((await response.json()).stdout);\n`;
}

export function Snippets({ draft }: { draft: Draft }) {
  const [open, setOpen] = useState(false);
  const [form, setForm] = useState<Form>("curl");
  const text = open ? writeSnippet(form, draft, location.origin) : "";
  return (
    <>
      <button type="button" class="button" onClick={() => setOpen(true)}><Icon name="docs" /> As code</button>
      {open && (
        <Dialog title="This request as code" wide onClose={() => setOpen(false)}>
          <div class="stack">
            <Tabs label="Language of the snippet" selected={form} onSelect={setForm}
              tabs={[{ id: "curl", text: "curl" }, { id: "python", text: "Python" }, { id: "javascript", text: "JavaScript" }]} />
            <div class="card">
              <header><span class="muted small">The key is in <code>CLOCHE_API_KEY</code>; its sandbox decides where the program runs.</span>
                <div class="actions"><CopyButton text={text} label="Copy the snippet" /></div></header>
              <Editor key={form} value={text} language={form === "curl" ? "bash" : form === "python" ? "python" : "node"} label="Snippet" readOnly maxHeight={420} />
            </div>
          </div>
        </Dialog>
      )}
    </>
  );
}
