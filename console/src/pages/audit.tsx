// The audit log: who changed what, when, and from where.
import { api, unwrap } from "../api/client";
import { teamParam } from "../api/lists";
import { place, setQuery } from "../router";
import { isOperator, teamName } from "../session";
import { Time, Visible } from "../ui/format";
import { List } from "../ui/list";
import { OlderButton, usePages } from "../ui/paged";
import { PageHead } from "../ui/parts";

export default function AuditPage() {
  const actor = place.value.query.get("actor") ?? "";
  const all = isOperator.value && place.value.query.get("all") !== null;
  const entries = usePages(async (cursor, signal) => {
    const query = { ...(all ? {} : teamParam()), limit: 100, ...(actor === "" ? {} : { actor }), ...(cursor === undefined ? {} : { cursor }) };
    const page = await unwrap(api.GET("/v1/admin/audit", { params: { query }, ...(signal === undefined ? {} : { signal }) }));
    return { items: page.entries, next: page.next_cursor };
  }, [teamName.value, actor, all]);
  return (
    <>
      <PageHead title="Audit log">
        <input class="input" type="search" data-search aria-label="Only this actor" placeholder="Only this actor  /" value={actor} onChange={(event) => setQuery({ actor: event.currentTarget.value })} />
        {isOperator.value && <label class="check"><input type="checkbox" checked={all} onChange={(event) => setQuery({ all: event.currentTarget.checked ? "1" : null })} /> All teams</label>}
      </PageHead>
      <List label="Audit log" query={entries} keyOf={(item) => String(item.id)}
        empty={{ icon: "audit", title: "Nothing has been changed yet", text: "Each change through the console, the command line or the API is recorded here." }}
        columns={[
          { title: "When", cell: (item) => <Time at={item.at} form="short" /> },
          { title: "Who", primary: true, cell: (item) => <><Visible text={item.actor.name} /> <span class="badge">{item.actor.kind}</span></> },
          { title: "What", cell: (item) => <code class="wrap"><Visible text={item.action} /></code> },
          { title: "Of", cell: (item) => <span class="mono wrap"><Visible text={item.target ?? "–"} /></span> },
          { title: "Fields", cell: (item) => <span class="wrap muted">{item.fields.join(", ") || "–"}</span> },
          { title: "From", cell: (item) => <span class="mono">{item.address ?? "–"}</span> },
          { title: "Answer", cell: (item) => <span class={`badge ${item.status < 400 ? "good" : "bad"}`}>{item.status}</span> },
        ]}
        foot={<OlderButton pages={entries} text="Show older entries" />} />
    </>
  );
}
