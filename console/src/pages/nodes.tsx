// Nodes: the executors of a fleet, as the health checks of this server see them.
import { overviewNow } from "../events";
import { formatNumber, Status, Visible } from "../ui/format";
import { List } from "../ui/list";
import { PageHead } from "../ui/parts";

export default function NodesPage() {
  const now = overviewNow.value;
  const nodes = now?.nodes ?? undefined;
  const well = nodes?.filter((node) => node.state === "up").length ?? 0;
  // The stream brings them every two seconds, so there is nothing to ask for.
  const list = { data: now === null ? undefined : nodes ?? [], error: null, loading: now === null, reload: () => {} };
  return (
    <>
      <PageHead title="Nodes" note={nodes === undefined || nodes.length === 0 ? undefined : `${well} of ${nodes.length} well`} />
      <List label="Nodes" query={list} keyOf={(item) => item.url}
        empty={{ icon: "nodes", title: "This server runs the code itself", text: <>With a fleet, its executors are listed here: start <code>cloche executor</code> on other hosts and name them in <code>SANDBOX_EXECUTOR_URL</code>.</> }}
        columns={[
          { title: "Node", primary: true, cell: (item) => <span class="mono wrap"><Visible text={item.url} /></span> },
          { title: "State", cell: (item) => <Status value={item.state} /> },
          { title: "Why", cell: (item) => <Visible text={item.reason ?? "–"} /> },
          { title: "Running", end: true, cell: (item) => formatNumber(item.running) },
          { title: "Threads", cell: (item) => item.keeps_homes ? "yes" : "no" },
          { title: "Longest run", end: true, cell: (item) => item.max_timeout_seconds === null || item.max_timeout_seconds === undefined ? "–" : `${formatNumber(item.max_timeout_seconds)} s` },
        ]} />
    </>
  );
}
