// Lists that several pages need: sandboxes and keys of the team, by id.
import { isOperator, teamName } from "../session";
import { type Query, useQuery } from "../ui/query";
import { type Schemas, api, unwrap } from "./client";

/** The team parameter of a call: operators name the team, members have only theirs. */
export function teamParam(): { team?: string } {
  return isOperator.value ? { team: teamName.value } : {};
}

/** The same as the text of a query, for addresses. */
export function teamSearch(extra: Record<string, string> = {}): string {
  const search = new URLSearchParams({ ...teamParam(), ...extra }).toString();
  return search === "" ? "" : `?${search}`;
}

export function useSandboxes(): Query<Schemas["SandboxRecord"][]> {
  return useQuery(
    async (signal) => (await unwrap(api.GET("/v1/admin/sandboxes", { params: { query: teamParam() }, signal }))).sandboxes,
    [teamName.value],
  );
}

export function useKeys(): Query<Schemas["KeyRecord"][]> {
  return useQuery(
    async (signal) => (await unwrap(api.GET("/v1/admin/keys", { params: { query: teamParam() }, signal }))).keys,
    [teamName.value],
  );
}

/** The name of what has this id, or the id. */
export function nameOf(items: { id: string; name: string }[] | undefined, id: string | null | undefined): string {
  return items?.find((item) => item.id === id)?.name ?? id ?? "";
}
