// The playground: write a program, choose where it runs, and watch it.
import { useEffect, useRef, useState } from "preact/hooks";
import { type Schemas, api, encodePath, unwrap } from "../api/client";
import { teamSearch, useKeys, useSandboxes } from "../api/lists";
import { hrefOf, place } from "../router";
import { mayDevelop } from "../session";
import { Editor } from "../ui/editor";
import { Status, formatMillis } from "../ui/format";
import { FilesCard } from "../ui/files";
import { Icon } from "../ui/icons";
import { toVariableRows } from "../ui/form";
import { LiveOutput } from "../ui/output";
import { Empty, Loading, PageHead } from "../ui/parts";
import { ImagePreview, isImage } from "../ui/preview";
import { useQuery } from "../ui/query";
import { type Draft, FIRST_DRAFT, SAMPLES, loadDraft, saveDraft } from "./playground-draft";
import { PlaygroundInputs, dropFiles } from "./playground-inputs";
import { type Run, useRun } from "./playground-run";
import { Snippets } from "./playground-snippets";

export default function PlaygroundPage() {
  const from = place.value.query.get("from");
  const thread = place.value.query.get("thread");
  const earlier = useQuery(
    async () => (from === null ? null
      : unwrap(api.GET("/v1/executions/{trace_id}", { params: { path: { trace_id: from } } }))),
    [from],
  );
  if (!mayDevelop.value) {
    return (
      <>
        <PageHead title="Playground" />
        <div class="card"><Empty icon="playground" title="Viewers cannot run code">
          <p>An owner of the team can make you a developer.</p>
        </Empty></div>
      </>
    );
  }
  if (from !== null && earlier.loading) return <><PageHead title="Playground" /><div class="card"><Loading /></div></>;
  const draft = earlier.data === null || earlier.data === undefined ? loadDraft() : draftOf(earlier.data);
  return <Workbench key={from ?? ""} first={thread === null ? draft : { ...draft, thread }} />;
}

/** What an earlier execution was, to run it again. */
function draftOf(record: Schemas["ExecutionRecord"]): Draft {
  return {
    ...FIRST_DRAFT,
    code: record.code ?? "",
    language: record.language ?? "python",
    sandbox: record.sandbox_id,
    key: record.key_id,
    thread: record.thread_id ?? "",
    metadata: toVariableRows(record.metadata as Record<string, string>, []),
  };
}

/** The languages of the image of a sandbox. */
function useLanguages(sandbox: Schemas["SandboxRecord"] | undefined): string[] {
  // An image is named NAME@DIGEST, of which the digest stays.
  const image = (sandbox?.image ?? "host").split("@").pop() ?? "host";
  const found = useQuery(async () => {
    if (image === "host") return null;
    return (await unwrap(api.GET("/v1/admin/images/{id}", { params: { path: { id: image } } }))).languages;
  }, [image]);
  return found.data ?? ["python", "node", "bash"];
}

function Workbench({ first }: { first: Draft }) {
  const sandboxes = useSandboxes();
  const [draft, setDraft] = useState<Draft>(first);
  const { run, start, cancel } = useRun();
  const latest = useRef(draft);
  latest.current = draft;
  const [dropping, setDropping] = useState(false);
  const change = (part: Partial<Draft>) => setDraft((old) => ({ ...old, ...part }));
  useEffect(() => saveDraft(draft), [draft]);
  const sandbox = sandboxes.data?.find((each) => each.id === draft.sandbox || each.name === draft.sandbox)
    ?? sandboxes.data?.find((each) => each.name === "default") ?? sandboxes.data?.[0];
  const languages = useLanguages(sandbox);
  const keys = (useKeys().data ?? []).filter((key) => key.sandbox_id === sandbox?.id && (key.revoked_at ?? null) === null && key.name !== "console");
  const key = keys.find((each) => each.id === draft.key)?.id ?? "";
  const go = () => {
    if (sandbox === undefined) return;
    start(sandbox.id, key, latest.current);
    // On a phone the output is below the inputs.
    if (matchMedia("(max-width: 1080px)").matches) document.getElementById("result")?.scrollIntoView({ block: "nearest" });
  };
  const chooseLanguage = (language: string) => {
    const isSample = Object.values(SAMPLES).includes(draft.code) || draft.code.trim() === "";
    change({ language, ...(isSample ? { code: SAMPLES[language] ?? "" } : {}) });
  };
  if (sandboxes.data !== undefined && sandboxes.data.length === 0) {
    return <><PageHead title="Playground" /><div class="card"><Empty icon="sandboxes" title="There is no sandbox to run in">
      <p>A sandbox says which image, limits and network a program gets.</p>
      <a class="button primary" href={hrefOf("/sandboxes", { create: "1" })}>Create a sandbox</a>
    </Empty></div></>;
  }
  const busy = run.state === "running" || run.state === "starting";
  return (
    <>
      <PageHead title="Playground">
        <Snippets draft={draft} />
        {busy
          ? <button type="button" class="button danger" onClick={cancel}><Icon name="stop" /> Cancel</button>
          : <button type="button" class="button primary" disabled={sandbox === undefined} onClick={go} title="Ctrl+Enter"><Icon name="playground" /> Run</button>}
      </PageHead>
      <div class={`playground ${dropping ? "dropping" : ""}`}
        onDragOver={(event) => { event.preventDefault(); setDropping(true); }}
        onDragLeave={() => setDropping(false)}
        onDrop={(event) => {
          event.preventDefault();
          setDropping(false);
          dropFiles(event.dataTransfer?.files, (files) => change({ files: [...latest.current.files, ...files] }));
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.defaultPrevented) go();
        }}>
        <div class="stack">
          <section class="card" aria-label="Program">
            <header class="play-head">
              <select class="select" aria-label="Language" value={draft.language} onChange={(event) => chooseLanguage(event.currentTarget.value)}>
                {(languages.includes(draft.language) ? languages : [...languages, draft.language]).map((name) => (
                  <option key={name} value={name} selected={name === draft.language}>{name}</option>
                ))}
              </select>
              <select class="select" aria-label="Sandbox" value={sandbox?.id ?? ""} onChange={(event) => change({ sandbox: event.currentTarget.value })}>
                {(sandboxes.data ?? []).map((each) => <option key={each.id} value={each.id} selected={each.id === sandbox?.id}>{each.name}</option>)}
              </select>
              {keys.length > 0 && (
                <select class="select" aria-label="Key" value={key} onChange={(event) => change({ key: event.currentTarget.value })}>
                  <option value="" selected={key === ""}>no key</option>
                  {keys.map((each) => <option key={each.id} value={each.id} selected={each.id === key}>{each.name}</option>)}
                </select>
              )}
              <span class="faint small play-hint"><kbd>Ctrl</kbd> <kbd>Enter</kbd> runs it</span>
            </header>
            <Editor value={draft.code} language={draft.language} label="Program" onChange={(code) => change({ code })} onSubmit={go} minHeight={300} maxHeight={560} />
          </section>
          <PlaygroundInputs draft={draft} change={change} problems={run.refused} />
        </div>
        <RunPanel run={run} />
      </div>
    </>
  );
}

function RunPanel({ run }: { run: Run }) {
  const result = run.result;
  const files = result?.output_files ?? [];
  return (
    <div class="stack">
      <section class="card" aria-label="Result" id="result">
        <header>
          <h2>Output</h2>
          {run.state === "running" || run.state === "starting" ? <Status value="running" /> : run.status !== null && <Status value={run.status} />}
          {result !== null && <span class="muted number">exit {result.exit_code} · {formatMillis(result.duration_ms)}</span>}
          {run.traceId !== null && <div class="actions"><a href={hrefOf(`/executions/${run.traceId}`)}>Details</a></div>}
        </header>
        {run.problem !== null && <p class="problem pad-16" role="alert">{run.problem}</p>}
        {run.state === "idle" && run.problem === null
          ? <Empty icon="playground" title="Nothing has run yet"><p>Output appears here line by line. Pictures that the program writes to its home are shown below it.</p></Empty>
          : <LiveOutput pieces={run.pieces} waiting={run.state === "done" ? "The program wrote nothing." : "Waiting for output…"} />}
      </section>
      {run.traceId !== null && files.filter((file) => isImage(file.name)).map((file) => (
        <figure class="card" key={file.name}>
          <header><h2 class="cut">{file.name}</h2></header>
          <ImagePreview address={`/v1/executions/${run.traceId}/files/${encodePath(file.name)}${teamSearch()}`} name={file.name} />
        </figure>
      ))}
      {run.traceId !== null && <FilesCard traceId={run.traceId} files={files.filter((file) => !isImage(file.name))} />}
    </div>
  );
}
