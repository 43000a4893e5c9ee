// Usage and credits: totals, per day and per key, and as CSV.
import { api, unwrap } from "../api/client";
import { teamParam, teamSearch } from "../api/lists";
import { place, setQuery } from "../router";
import { isOperator, teamName } from "../session";
import { formatBytes, formatMillis, formatNumber, Time } from "../ui/format";
import { Icon } from "../ui/icons";
import { List } from "../ui/list";
import { Failed, Loading, Meter, PageHead } from "../ui/parts";
import { useQuery } from "../ui/query";

function today(): string {
  return new Date().toISOString().slice(0, 10);
}

export default function UsagePage() {
  const query = place.value.query;
  const from = query.get("from") ?? `${today().slice(0, 8)}01`;
  const to = query.get("to") ?? today();
  const totals = useQuery((signal) => {
    const params = { query: { ...teamParam(), from, to } };
    return isOperator.value ? unwrap(api.GET("/v1/admin/usage", { params, signal })) : unwrap(api.GET("/v1/usage", { params: { query: { from, to } }, signal }));
  }, [teamName.value, from, to]);
  const rows = useQuery(async (signal) => {
    const params = { query: { ...teamParam(), from, to } };
    const days = await unwrap(api.GET("/v1/admin/usage/days", { params, signal }));
    // The same path answers with text when CSV is asked for.
    return typeof days === "string" ? [] : days.rows;
  }, [teamName.value, from, to]);
  return (
    <>
      <PageHead title="Usage">
        <label class="row">From <input class="input date" type="date" value={from} max={to} onChange={(event) => setQuery({ from: event.currentTarget.value })} /></label>
        <label class="row">to <input class="input date" type="date" value={to} min={from} onChange={(event) => setQuery({ to: event.currentTarget.value })} /></label>
        <a class="button" href={`/v1/admin/usage/days${teamSearch({ from, to, format: "csv" })}`} download={`usage-${from}-${to}.csv`}><Icon name="download" /> CSV</a>
      </PageHead>
      {totals.data === undefined
        ? <div class="card">{totals.error === null ? <Loading lines={2} /> : <Failed error={totals.error} retry={totals.reload} />}</div>
        : (
          <div class="figures">
            <Total title="Executions" value={formatNumber(totals.data.executions)} />
            <div class="card figure"><span class="figure-title">Credits</span><span class="figure-value number">{formatNumber(totals.data.credits, 2)}</span>
              {totals.data.allowance === null || totals.data.allowance === undefined ? <span class="figure-note">no monthly allowance</span> : (
                <><Meter value={totals.data.allowance.used_credits / Math.max(totals.data.allowance.monthly_credits, 0.001)} label="Use of the monthly allowance" />
                  <span class="figure-note">of {formatNumber(totals.data.allowance.monthly_credits)}, renews <Time at={totals.data.allowance.renews_at} form="ago" /></span></>
              )}</div>
            <Total title="Processor time" value={formatMillis(totals.data.cpu_seconds * 1000)} />
            <Total title="Transferred" value={formatBytes(totals.data.bytes_transferred)} note={`${formatBytes(totals.data.network_bytes_in + totals.data.network_bytes_out)} over networks of sandboxes`} />
            <Total title="Stored" value={formatBytes(totals.data.bytes_stored ?? 0)} />
          </div>
        )}
      <List label="Usage per day and key" query={rows} keyOf={(item) => `${item.day} ${item.key_id}`}
        empty={{ icon: "usage", title: "Nothing was used in this time", text: "Choose other dates, or run something." }}
        columns={[
          { title: "Day (UTC)", primary: true, cell: (item) => item.day },
          { title: "Key", cell: (item) => item.key_name ?? item.key_id },
          { title: "Executions", end: true, cell: (item) => formatNumber(item.executions) },
          { title: "Credits", end: true, cell: (item) => formatNumber(item.credits, 3) },
          { title: "CPU", end: true, cell: (item) => formatMillis(item.cpu_ms) },
          { title: "Received", end: true, cell: (item) => formatBytes(item.received_bytes) },
          { title: "Sent", end: true, cell: (item) => formatBytes(item.sent_bytes) },
        ]} />
    </>
  );
}

function Total({ title, value, note }: { title: string; value: string; note?: string }) {
  return <div class="card figure"><span class="figure-title">{title}</span><span class="figure-value number">{value}</span><span class="figure-note">{note ?? "\u00a0"}</span></div>;
}
