// The overview: how the service does now, and over the last hours.
import { useMemo } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { type Schemas, api, unwrap } from "../api/client";
import { useKeys } from "../api/lists";
import { type OverviewNow, overviewNow, wholeServer } from "../events";
import { hrefOf, place, setQuery } from "../router";
import { isOperator, mayDevelop, teamName } from "../session";
import { theme } from "../theme";
import { Chart } from "../ui/chart";
import type { ChartSeries } from "../ui/chart-core";
import { formatBytes, formatMillis, formatNumber } from "../ui/format";
import { Icon } from "../ui/icons";
import { Empty, Failed, Loading, Meter, PageHead } from "../ui/parts";
import { useQuery, useReload } from "../ui/query";

const RANGES = ["15m", "1h", "6h", "24h"] as const;
type Range = (typeof RANGES)[number];

const RUNS: ChartSeries[] = [
  { label: "Runs", colour: 1, format: (value) => formatNumber(value), fill: true, top: 4 },
  { label: "Not successful", colour: 2, format: (value) => formatNumber(value) },
];
const LATENCY: ChartSeries[] = [
  { label: "p50", colour: 1, format: formatMillis, top: 10 },
  { label: "p95", colour: 3, format: formatMillis },
  { label: "p99", colour: 4, format: formatMillis },
];
const NETWORK: ChartSeries[] = [
  { label: "In", colour: 1, format: formatBytes, fill: true, top: 1024 },
  { label: "Out", colour: 3, format: formatBytes },
];

export default function OverviewPage() {
  const chosen = place.value.query.get("range");
  const range: Range = RANGES.find((each) => each === chosen) ?? "1h";
  const everything = isOperator.value && wholeServer.value;
  const team = isOperator.value && !everything ? { team: teamName.value } : {};
  const past = useQuery(
    (signal) => unwrap(api.GET("/console/api/overview", { params: { query: { range, ...team } }, signal })),
    [range, teamName.value, everything],
  );
  // The stream renders this page every two seconds; the charts have steps of ten and more.
  useReload(Math.floor(Date.now() / 10_000), past.reload);
  const now = overviewNow.value;
  return (
    <>
      <PageHead title="Overview">
        {isOperator.value && (
          <div class="segments" role="group" aria-label="Whose figures">
            <button type="button" class="segment" aria-pressed={!everything} onClick={() => { wholeServer.value = false; }}>Team {teamName.value}</button>
            <button type="button" class="segment" aria-pressed={everything} onClick={() => { wholeServer.value = true; }}>All teams</button>
          </div>
        )}
        <div class="segments" role="group" aria-label="Time shown">
          {RANGES.map((each) => (
            <button type="button" class="segment" key={each} aria-pressed={each === range} onClick={() => setQuery({ range: each })}>{each}</button>
          ))}
        </div>
      </PageHead>
      <Figures now={now} />
      {past.data === undefined
        ? <div class="card">{past.error === null ? <Loading lines={5} label="Loading the charts" /> : <Failed error={past.error} retry={past.reload} />}</div>
        : <Charts past={past.data} />}
      <div class="halves">
        <TopSandboxes now={now} />
        {isOperator.value ? <HostCard now={now} /> : <FirstSteps />}
      </div>
      {isOperator.value && <FirstSteps />}
    </>
  );
}

function Figure({ title, value, note }: { title: string; value: ComponentChildren; note?: ComponentChildren }) {
  return (
    <div class="card figure">
      <span class="figure-title">{title}</span>
      <span class="figure-value number">{value}</span>
      <span class="figure-note number">{note ?? "\u00a0"}</span>
    </div>
  );
}

function Figures({ now }: { now: OverviewNow | null }) {
  const latency = now?.latency_ms;
  return (
    <div class="figures" aria-label="Now" role="region">
      <Figure title="Runs a minute" value={now === null ? "…" : formatNumber(now.runs_per_minute, 1)} note={now === null ? "" : `${now.executions_running} running now`} />
      <Figure title="Successful" value={now?.success_rate === null || now?.success_rate === undefined ? "–" : `${(now.success_rate * 100).toFixed(1)} %`} note="of the last five minutes" />
      <Figure title="Latency" value={latency === null || latency === undefined ? "–" : formatMillis(latency.p50)}
        note={latency === null || latency === undefined ? "no runs lately" : `p95 ${formatMillis(latency.p95)} · p99 ${formatMillis(latency.p99)}`} />
      <Figure title="Network" value={now === null ? "…" : formatBytes(now.network.in_bytes + now.network.out_bytes)}
        note={now === null ? "" : `${formatBytes(now.network.in_bytes)} in, ${formatBytes(now.network.out_bytes)} out, last minute`} />
    </div>
  );
}

function Charts({ past }: { past: Schemas["OverviewHistory"] }) {
  const data = useMemo(() => fillGaps(past), [past]);
  const theming = theme.value;
  if (past.points.length === 0) {
    return <div class="card"><Empty icon="overview" title="Nothing ran in this time"><p>Choose a longer time, or run something.</p>
      {mayDevelop.value && <a class="button" href={hrefOf("/playground")}>Open the playground</a>}</Empty></div>;
  }
  return (
    <div class="charts">
      <ChartCard title={`Runs per ${formatStep(past.step_seconds)}`} series={RUNS}>
        <Chart label="Runs" times={data.times} series={RUNS} values={data.runs} theme={theming} />
      </ChartCard>
      <ChartCard title="Latency" series={LATENCY}>
        <Chart label="Latency" times={data.times} series={LATENCY} values={data.latency} theme={theming} />
      </ChartCard>
      <ChartCard title="Network" series={NETWORK}>
        <Chart label="Network" times={data.times} series={NETWORK} values={data.network} theme={theming} />
      </ChartCard>
    </div>
  );
}

function ChartCard({ title, series, children }: { title: string; series: ChartSeries[]; children: ComponentChildren }) {
  return (
    <section class="card" aria-label={title}>
      <header>
        <h2>{title}</h2>
        <div class="actions legend">
          {series.map((each) => <span key={each.label}><i class={`swatch s-${each.colour}`} aria-hidden="true" />{each.label}</span>)}
        </div>
      </header>
      {children}
    </section>
  );
}

function formatStep(seconds: number): string {
  return seconds % 60 === 0 ? (seconds === 60 ? "minute" : `${seconds / 60} minutes`) : `${seconds} s`;
}

/** The points as columns, with zeros where nothing ran. */
function fillGaps(past: Schemas["OverviewHistory"]) {
  const step = Math.max(past.step_seconds, 1);
  const slot = (at: string) => Math.floor(Date.parse(at) / 1000 / step);
  const known = new Map(past.points.map((point) => [slot(point.at), point]));
  const times: number[] = [];
  const runs: (number | null)[][] = [[], []];
  const latency: (number | null)[][] = [[], [], []];
  const network: (number | null)[][] = [[], []];
  for (let at = slot(past.from); at <= slot(past.to); at++) {
    const point = known.get(at);
    // The last step is not over yet.
    if (point === undefined && at === slot(past.to)) break;
    times.push(at * step);
    runs[0]?.push(point?.runs ?? 0);
    runs[1]?.push(point?.failed ?? 0);
    latency[0]?.push(point?.p50_ms ?? null);
    latency[1]?.push(point?.p95_ms ?? null);
    latency[2]?.push(point?.p99_ms ?? null);
    network[0]?.push(point?.network_in_bytes ?? 0);
    network[1]?.push(point?.network_out_bytes ?? 0);
  }
  return { times, runs, latency, network };
}

function TopSandboxes({ now }: { now: OverviewNow | null }) {
  const top = now?.top_sandboxes ?? [];
  const most = Math.max(...top.map((each) => each.runs), 1);
  return (
    <section class="card" aria-label="Busiest sandboxes">
      <header><h2>Busiest sandboxes</h2><span class="muted">last hour</span></header>
      {top.length === 0 ? <p class="muted pad-16">Nothing ran in the last hour.</p> : (
        <ul class="bars body">
          {top.map((each) => (
            <li key={each.sandbox_id}>
              <a class="cut" href={hrefOf("/executions", { sandbox: each.sandbox_id })}>{each.name ?? each.sandbox_id}</a>
              <Meter value={each.runs / most * 0.89} label={`${each.name ?? each.sandbox_id}: ${each.runs} runs`} />
              <span class="number faint">{formatNumber(each.runs)}</span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function HostCard({ now }: { now: OverviewNow | null }) {
  const memory = now?.memory;
  return (
    <section class="card" aria-label="Host">
      <header><h2>Host</h2></header>
      <dl class="facts body">
        <dt>Cells</dt><dd class="number">{now?.cells_running ?? "–"}</dd>
        <dt>Waiting</dt><dd class="number">{now?.queue_waiting ?? "–"}</dd>
        <dt>Memory</dt>
        <dd>{memory === null || memory === undefined ? "–" : (
          <><span class="number">{formatBytes(memory.used_bytes)} of {formatBytes(memory.limit_bytes)}</span>
            <Meter value={memory.used_bytes / Math.max(memory.limit_bytes, 1)} label="Memory" /></>
        )}</dd>
        <dt>Pools</dt>
        <dd class="row">{(now?.pools ?? []).map((pool) => <span class="tag" key={pool.name}><span>{pool.name} <b>{pool.parked}/{pool.target}</b></span></span>)}
          {(now?.pools ?? []).length === 0 && "–"}</dd>
      </dl>
    </section>
  );
}

/** What to do first, until there is a key besides the one of the first start. */
function FirstSteps() {
  const keys = useKeys();
  if (keys.data === undefined || keys.data.length > 1 || !mayDevelop.value) return null;
  return (
    <section class="card pad stack" aria-label="First steps">
      <h2>First steps</h2>
      <div class="row">
        <a class="button" href={hrefOf("/playground")}><Icon name="playground" /> Run something</a>
        <a class="button" href={hrefOf("/sandboxes", { create: "1" })}><Icon name="sandboxes" /> Create a sandbox</a>
        <a class="button" href={hrefOf("/keys", { create: "1" })}><Icon name="keys" /> Create a key</a>
        <a class="button" href={hrefOf("/api-docs")}><Icon name="docs" /> Read the API</a>
      </div>
    </section>
  );
}
