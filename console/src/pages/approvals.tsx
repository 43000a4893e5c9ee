// Approvals: calls of agents that wait for a person.
import { api, unwrap } from "../api/client";
import { nameOf, teamParam, useKeys } from "../api/lists";
import { pendingApprovals } from "../events";
import { hrefOf, place, setQuery } from "../router";
import { teamName } from "../session";
import { Status, Time, formatBytes } from "../ui/format";
import { List } from "../ui/list";
import { useReload } from "../ui/query";
import { OlderButton, usePages } from "../ui/paged";
import { PageHead, Tabs } from "../ui/parts";

const PAGE = 100;

export default function ApprovalsPage() {
  const view = place.value.query.get("view") === "all" ? "all" : "pending";
  const keys = useKeys();
  const list = usePages(async (before, signal) => {
    const query = { ...teamParam(), limit: PAGE, ...(view === "pending" ? { state: "pending" as const } : {}), ...(before === undefined ? {} : { before }) };
    const items = (await unwrap(api.GET("/v1/admin/approvals", { params: { query }, ...(signal === undefined ? {} : { signal }) }))).approvals;
    return { items, next: items.length < PAGE ? null : items[items.length - 1]?.id };
  }, [teamName.value, view]);
  useReload(pendingApprovals.value, list.reload);
  return (
    <>
      <PageHead title="Approvals" note={`${pendingApprovals.value} waiting`} />
      <Tabs label="Which approvals" selected={view} onSelect={(next) => setQuery({ view: next === "all" ? "all" : null })}
        tabs={[{ id: "pending", text: "Waiting" }, { id: "all", text: "All" }]} />
      <List label="Approvals" query={list} keyOf={(item) => item.id}
        empty={view === "pending"
          ? { icon: "approvals", title: "Nothing waits for an answer", text: "Calls of agents appear here by themselves when their policy is “ask”." }
          : { icon: "approvals", title: "No agent has asked yet", text: "Calls of agents are recorded here when their policy is “ask”." }}
        columns={[
          { title: "Tool", primary: true, cell: (item) => <a href={hrefOf(`/approvals/${item.id}`)}>{item.tool}</a> },
          { title: "State", cell: (item) => <Status value={item.state} /> },
          { title: "Agent's key", cell: (item) => nameOf(keys.data, item.key_id) },
          { title: "Thread", cell: (item) => item.thread_id ?? "–" },
          { title: "Arguments", end: true, cell: (item) => formatBytes(item.arguments_bytes) },
          { title: "Asked", cell: (item) => <Time at={item.created_at} form="ago" /> },
          { title: "Answered by", cell: (item) => item.decided_by ?? "–" },
        ]}
        actions={(item) => <a class="button small" href={hrefOf(`/approvals/${item.id}`)}>{item.state === "pending" ? "Review" : "Open"}</a>}
        foot={<OlderButton pages={list} text="Show older approvals" />} />
    </>
  );
}
