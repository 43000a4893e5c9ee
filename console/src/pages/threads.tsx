// Threads: homes that outlive executions.
import { useState } from "preact/hooks";
import { api, unwrap } from "../api/client";
import { teamParam } from "../api/lists";
import { hrefOf } from "../router";
import { mayDevelop, teamName } from "../session";
import { Time, formatBytes, formatNumber } from "../ui/format";
import { Empty, Failed, Loading, PageHead } from "../ui/parts";
import { useQuery } from "../ui/query";

export default function ThreadsPage() {
  const [text, setText] = useState("");
  const list = useQuery(async (signal) => {
    const found = [];
    let cursor: string | null | undefined;
    // A team with more threads finds one by its name, in the field above or with `/`.
    for (let page = 0; page < 10; page++) {
      const query = { ...teamParam(), limit: 100, ...(cursor === undefined || cursor === null ? {} : { cursor }) };
      const answer = await unwrap(api.GET("/v1/threads", { params: { query }, signal }));
      found.push(...answer.threads);
      cursor = answer.next_cursor;
      if (cursor === null || cursor === undefined) break;
    }
    return found;
  }, [teamName.value]);
  const shown = list.data?.filter((thread) => thread.thread_id.toLowerCase().includes(text.toLowerCase()));
  return (
    <>
      <PageHead title="Threads" note={list.data === undefined ? undefined : `${formatNumber(list.data.length)}`}>
        <input class="input" type="search" data-search aria-label="Find a thread" placeholder="Find a thread  /" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </PageHead>
      <div class="card" aria-busy={list.loading}>
        {list.error !== null && <Failed error={list.error} retry={list.reload} />}
        {list.data === undefined && list.error === null && <Loading label="Loading threads" />}
        {list.data?.length === 0 && (
          <Empty icon="threads" title="There is no thread yet">
            <p>Give an execution a <code>thread_id</code>, and its home is kept for the next one with the same id.</p>
            {mayDevelop.value && <a class="button primary" href={hrefOf("/playground", { thread: "first-thread" })}>Start one in the playground</a>}
          </Empty>
        )}
        {shown !== undefined && shown.length === 0 && (list.data?.length ?? 0) > 0 && <Empty icon="search" title="No thread has this in its name" />}
        {shown !== undefined && shown.length > 0 && (
          <div class="table-wrap">
            <table class="table cards">
              <thead><tr>
                <th scope="col">Thread</th><th scope="col" class="end">Size</th><th scope="col" class="end">Files</th>
                <th scope="col" class="end">Snapshot</th><th scope="col">Last used</th><th scope="col">Created</th>
              </tr></thead>
              <tbody>
                {shown.map((thread) => (
                  <tr key={thread.thread_id}>
                    <td class="primary-cell wrap"><a href={hrefOf(`/threads/${thread.thread_id}`)}>{thread.thread_id}</a></td>
                    <td data-label="Size" class="end number">{formatBytes(thread.bytes)}</td>
                    <td data-label="Files" class="end number">{formatNumber(thread.entries)}</td>
                    <td data-label="Snapshot" class="end number">{thread.head}</td>
                    <td data-label="Last used"><Time at={thread.updated_at} form="ago" /></td>
                    <td data-label="Created"><Time at={thread.created_at} form="short" /></td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </div>
    </>
  );
}
