// The API, as the server describes it.
import { useState } from "preact/hooks";
import { fetchRaw } from "../api/client";
import { CopyLine, Empty, Failed, Loading, PageHead } from "../ui/parts";
import { useQuery } from "../ui/query";

interface Schema {
  $ref?: string;
  type?: string | string[];
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  oneOf?: Schema[];
  allOf?: Schema[];
  enum?: unknown[];
}
interface Operation {
  summary?: string;
  description?: string;
  tags?: string[];
  parameters?: { name: string; in: string; required?: boolean; description?: string; schema?: Schema }[];
  requestBody?: { content: Record<string, { schema?: Schema }> };
  responses: Record<string, { description?: string; content?: Record<string, { schema?: Schema }> }>;
}
interface Description {
  info: { title: string; version: string; description?: string };
  tags?: { name: string; description?: string }[];
  paths: Record<string, Record<string, Operation>>;
  components?: { schemas?: Record<string, Schema> };
}

const METHODS = ["get", "post", "put", "patch", "delete"];

function nameOfType(schema: Schema | undefined): string {
  if (schema === undefined) return "";
  if (schema.$ref !== undefined) return schema.$ref.split("/").pop() ?? "";
  if (schema.enum !== undefined) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.oneOf !== undefined) return schema.oneOf.map(nameOfType).join(" | ");
  const type = [schema.type ?? "any"].flat().join(" | ");
  return schema.items === undefined ? type : `${type} of ${nameOfType(schema.items)}`;
}

export default function ApiDocsPage() {
  const description = useQuery(async () => (await fetchRaw("/openapi.json")).json() as Promise<Description>, []);
  const [text, setText] = useState("");
  const data = description.data;
  const wanted = text.toLowerCase();
  const operations = Object.entries(data?.paths ?? {}).flatMap(([path, methods]) =>
    METHODS.filter((method) => methods[method] !== undefined).map((method) => ({ path, method, operation: methods[method] as Operation })))
    .filter(({ path, operation }) => wanted === "" || `${path} ${operation.summary ?? ""}`.toLowerCase().includes(wanted));
  const tags = data?.tags ?? [];
  return (
    <>
      <PageHead title="API" note={data === undefined ? undefined : `version ${data.info.version}`}>
        <input class="input" type="search" data-search aria-label="Find an operation" placeholder="Find an operation  /" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <a class="button" href="/openapi.json" target="_blank" rel="noreferrer">openapi.json</a>
      </PageHead>
      <CopyLine text={`curl -sS ${location.origin}/v1/sandbox/execute -H "Authorization: Bearer $CLOCHE_API_KEY" -H "Content-Type: application/json" -d '{"code": "print(1 + 1)"}'`} label="Copy the command" />
      {description.error !== null && <div class="card"><Failed error={description.error} retry={description.reload} /></div>}
      {data === undefined && description.error === null && <div class="card"><Loading label="Loading the description" /></div>}
      {data !== undefined && operations.length === 0 && <div class="card"><Empty icon="search" title="No operation matches" /></div>}
      {tags.map((tag) => {
        const own = operations.filter(({ operation }) => operation.tags?.[0] === tag.name);
        if (own.length === 0) return null;
        return (
          <section class="card" key={tag.name} aria-label={tag.name}>
            <header><h2>{tag.name}</h2><span class="muted">{tag.description}</span></header>
            {own.map((each) => <OperationView key={`${each.method} ${each.path}`} {...each} schemas={data?.components?.schemas ?? {}} />)}
          </section>
        );
      })}
    </>
  );
}

interface OperationProps {
  path: string;
  method: string;
  operation: Operation;
  schemas: Record<string, Schema>;
}
function OperationView({ path, method, operation, schemas }: OperationProps) {
  const body = Object.values(operation.requestBody?.content ?? {})[0]?.schema;
  const resolved = body?.$ref === undefined ? body : schemas[body.$ref.split("/").pop() ?? ""];
  const fields = [resolved, ...(resolved?.allOf ?? []).map((part) => (part.$ref === undefined ? part : schemas[part.$ref.split("/").pop() ?? ""]))]
    .flatMap((part) => Object.entries(part?.properties ?? {}).map(([name, schema]) => ({ name, schema, required: part?.required?.includes(name) === true })));
  return (
    <details class="operation">
      <summary><span class={`method ${method}`}>{method.toUpperCase()}</span> <code class="wrap">{path}</code> <span class="muted">{operation.summary}</span></summary>
      <div class="pad-16 stack">
        {operation.description !== undefined && <p>{operation.description}</p>}
        {(operation.parameters ?? []).length > 0 && <FieldTable title="Parameters" rows={(operation.parameters ?? []).map((each) => ({ name: each.name, type: `${each.in}, ${nameOfType(each.schema)}`, text: each.description, required: each.required === true }))} />}
        {fields.length > 0 && <FieldTable title="Body" rows={fields.map(({ name, schema, required }) => ({ name, type: nameOfType(schema), text: schema.description, required }))} />}
        <FieldTable title="Answers" rows={Object.entries(operation.responses).map(([status, answer]) => ({ name: status, type: Object.values(answer.content ?? {}).map((each) => nameOfType(each.schema)).join(", "), text: answer.description, required: false }))} />
      </div>
    </details>
  );
}

interface FieldRow {
  name: string;
  type: string;
  text: string | undefined;
  required: boolean;
}
function FieldTable({ title, rows }: { title: string; rows: FieldRow[] }) {
  return (
    <div class="table-wrap"><table class="table cards compact">
      <thead><tr><th scope="col">{title}</th><th scope="col">Type</th><th scope="col"><span class="visually-hidden">Meaning</span></th></tr></thead>
      <tbody>{rows.map((row) => (
        <tr key={row.name}><td class="primary-cell"><code>{row.name}</code>{row.required && <span class="badge">required</span>}</td><td class="mono small wrap">{row.type}</td><td class="wrap muted">{row.text}</td></tr>
      ))}</tbody>
    </table></div>
  );
}
