// Responses of the Agent API.
import { api, unwrap } from "../api/client";
import { nameOf, useKeys } from "../api/lists";
import { hrefOf } from "../router";
import { teamName } from "../session";
import { Status, Time } from "../ui/format";
import { List } from "../ui/list";
import { PageHead } from "../ui/parts";
import { useQuery } from "../ui/query";

export default function ResponsesPage() {
  const keys = useKeys();
  const list = useQuery(
    async (signal) => (await unwrap(api.GET("/v1/responses", { params: { query: { limit: 100 } }, signal }))).responses, [teamName.value],
  );
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
        ]} />
    </>
  );
}
