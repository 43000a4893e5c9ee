// One response of the Agent API: what the model said, and what it ran.
import { type Schemas, api, unwrap } from "../api/client";
import { overviewNow } from "../events";
import { hrefOf } from "../router";
import type { PageProps } from "../routes";
import { mayDevelop } from "../session";
import { Ansi } from "../ui/ansi";
import { Editor } from "../ui/editor";
import { Status, Time, Visible, formatNumber } from "../ui/format";
import { Failed, Loading, PageHead, attempt } from "../ui/parts";
import { useQuery, useReload } from "../ui/query";

type Item = Schemas["OutputItem"];

export default function ResponsePage({ params }: PageProps) {
  const id = params.id ?? "";
  const record = useQuery(
    (signal) => unwrap(api.GET("/v1/responses/{id}", { params: { path: { id } }, signal })) as Promise<Schemas["ResponseRecord"]>, [id],
  );
  const works = record.data?.status === "in_progress" || record.data?.status === "queued" || record.data?.status === "requires_action";
  // The stream of events has figures every two seconds; they are the beat while an agent works.
  useReload(works ? overviewNow.value : null, record.reload);
  const crumb = { href: hrefOf("/responses"), text: "Agent responses" };
  const data = record.data;
  if (data === undefined) {
    return <><PageHead title={<span class="mono">{id}</span>} crumb={crumb} />
      <div class="card">{record.error === null ? <Loading /> : <Failed error={record.error} retry={record.reload} />}</div></>;
  }
  const cancel = () => attempt(async () => {
    await unwrap(api.POST("/v1/responses/{id}/cancel", { params: { path: { id } } }));
    record.reload();
  }, "Cancelling");
  return (
    <>
      <PageHead title={<span class="mono">{id}</span>} crumb={crumb} note={<Status value={data.status} />}>
        <button type="button" class="button" onClick={record.reload}>Refresh</button>
        {mayDevelop.value && (data.status === "in_progress" || data.status === "queued") && <button type="button" class="button danger" onClick={cancel}>Cancel</button>}
      </PageHead>
      {data.error !== null && data.error !== undefined && <div class="notice bad"><Visible text={data.error.message} /></div>}
      {data.required_action !== null && data.required_action !== undefined && (
        <div class="notice warn"><span class="grow"><Visible text={data.required_action.message} /></span>
          <a class="button small" href={hrefOf(`/approvals/${data.required_action.approval_id}`)}>Review</a></div>
      )}
      <div class="split">
        <div class="stack">{data.output.map((item, at) => <OutputCard key={at} item={item} />)}
          {data.output.length === 0 && <p class="muted card pad">There is no output yet.</p>}</div>
        <section class="card" aria-label="Facts">
          <header><h2>Facts</h2></header>
          <dl class="facts body">
            <dt>Model</dt><dd>{data.model}</dd>
            <dt>Created</dt><dd><Time at={data.created_at} /></dd>
            <dt>Tokens</dt><dd class="number">{formatNumber(data.usage.input_tokens)} in, {formatNumber(data.usage.output_tokens)} out</dd>
            <dt>Cost</dt><dd class="number">${data.usage.cost.total_cost}</dd>
            {data.previous_response_id !== null && data.previous_response_id !== undefined && <><dt>Continues</dt><dd><a class="mono" href={hrefOf(`/responses/${data.previous_response_id}`)}>{data.previous_response_id}</a></dd></>}
          </dl>
        </section>
      </div>
    </>
  );
}

function OutputCard({ item }: { item: Item }) {
  if (item.type === "message") {
    return <section class="card" aria-label="Message"><header><h2>Message</h2></header>
      <p class="pad-16 prose"><Visible text={item.content.map((part) => part.text).join("\n")} /></p></section>;
  }
  if (item.type === "sandbox_results") {
    return (
      <section class="card" aria-label="Program">
        <header><h2>Program</h2><span class="muted">{item.language}</span></header>
        <Editor value={item.code} language={item.language} label="Code" readOnly maxHeight={360} />
        {item.results.map((result, at) => (
          <div key={at}>
            <h3 class="output-title">exit {result.exit_code} {result.trace_id !== null && result.trace_id !== undefined && <a class="mono" href={hrefOf(`/executions/${result.trace_id}`)}>{result.trace_id}</a>}</h3>
            <pre class="output" tabIndex={0} role="region" aria-label="Output"><Ansi text={result.stdout} /><span class="stderr"><Ansi text={result.stderr} /></span></pre>
          </div>
        ))}
      </section>
    );
  }
  const title = item.type === "search_results" ? "Search" : item.type === "fetch_url_results" ? "Fetched pages" : item.name;
  return <section class="card" aria-label={title}><header><h2>{title}</h2></header>
    <pre class="output" tabIndex={0} role="region" aria-label={title}><Visible text={JSON.stringify(item, null, 2)} /></pre></section>;
}
