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
  const json = JSON.stringify(body, null, 2);
  if (form === "curl") return writeCurl(url, json);
  if (form === "python") return writePython(url, toPython(body, ""));
  return writeJavaScript(url, json.replaceAll("\n", "\n    "));
}

/** The body comes from a here-document: an argument cannot be as long as a file may be. */
function writeCurl(url: string, json: string): string {
  return [
    `curl -sS ${quoteShell(url)} \\`,
    '  -H "Authorization: Bearer $CLOCHE_API_KEY" \\',
    '  -H "Content-Type: application/json" \\',
    "  --data-binary @- <<'JSON'",
    json,
    "JSON",
    "",
  ].join("\n");
}

/** With the standard library only, so that it runs where nothing is installed. */
function writePython(url: string, body: string): string {
  return [
    "import json",
    "import os",
    "import urllib.error",
    "import urllib.request",
    "",
    `body = ${body}`,
    "request = urllib.request.Request(",
    `    ${JSON.stringify(url)},`,
    "    data=json.dumps(body).encode(),",
    "    headers={",
    '        "Authorization": "Bearer " + os.environ["CLOCHE_API_KEY"],',
    '        "Content-Type": "application/json",',
    "    },",
    ")",
    "try:",
    "    with urllib.request.urlopen(request) as response:",
    "        result = json.load(response)",
    "except urllib.error.HTTPError as error:",
    "    raise SystemExit(error.read().decode())",
    "",
    'print(result["stdout"], end="")',
    "",
  ].join("\n");
}

/** In a function, because only modules may wait at their top. */
function writeJavaScript(url: string, json: string): string {
  return [
    "async function main() {",
    `  const response = await fetch(${JSON.stringify(url)}, {`,
    '    method: "POST",',
    "    headers: {",
    "      Authorization: `Bearer ${process.env.CLOCHE_API_KEY}`,",
    '      "Content-Type": "application/json",',
    "    },",
    `    body: JSON.stringify(${json}),`,
    "  });",
    "  if (!response.ok) throw new Error(await response.text());",
    "  const result = await response.json();",
    "  process.stdout.write(result.stdout);",
    "}",
    "",
    "main();",
    "",
  ].join("\n");
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
