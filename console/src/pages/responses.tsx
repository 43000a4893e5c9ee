// Responses of the Agent API.
import { api, unwrap } from "../api/client";
import { nameOf, useKeys } from "../api/lists";
import { overviewNow, pendingApprovals } from "../events";
import { hrefOf } from "../router";
import { teamName } from "../session";
import { Status, Time } from "../ui/format";
import { List } from "../ui/list";
import { OlderButton, usePages } from "../ui/paged";
import { PageHead } from "../ui/parts";
import { useReload } from "../ui/query";

export default function ResponsesPage() {
  const keys = useKeys();
  const list = usePages(async (cursor, signal) => {
    const query = { limit: 100, ...(cursor === undefined ? {} : { cursor }) };
    const page = await unwrap(api.GET("/v1/responses", { params: { query }, ...(signal === undefined ? {} : { signal }) }));
    return { items: page.responses, next: page.next_cursor };
  }, [teamName.value]);
  const works = list.data?.some((item) => item.status === "in_progress" || item.status === "queued") === true;
  // The stream of events has figures every two seconds; they are the beat while an agent works.
  useReload(works ? overviewNow.value : pendingApprovals.value, list.reload);
  return (
    <>
      <PageHead title="Agent responses" />
      <List label="Agent responses" query={list} keyOf={(item) => item.id}
        empty={{ icon: "responses", title: "No agent has answered yet", text: <>Send a request to <code>/v1/responses</code> with a model and the sandbox tool. <a href={hrefOf("/api-docs")}>Read the API</a></> }}
        columns={[
          { title: "Response", primary: true, cell: (item) => <a class="mono" href={hrefOf(`/responses/${item.id}`)}>{item.id}</a> },
          { title: "Status", cell: (item) => <Status value={item.status} /> },
          { title: "Model", cell: (item) => item.model ?? "–" },
          { title: "Key", cell: (item) => nameOf(keys.data, item.key_id) },
          { title: "Created", cell: (item) => <Time at={item.created_at} form="short" /> },
        ]}
        foot={<OlderButton pages={list} text="Show older responses" />} />
    </>
  );
}
