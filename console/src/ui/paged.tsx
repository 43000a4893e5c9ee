// A list that the server gives in pages: the first one at once, older ones when somebody asks.
import { useState } from "preact/hooks";
import { attempt } from "./parts";
import { type Query, useQuery } from "./query";

export interface Page<T> {
  items: T[];
  next: string | null | undefined;
}

export interface Paged<T> extends Query<T[]> {
  /** Where the next page begins; null if all are here. */
  next: string | null;
  more: () => Promise<boolean>;
}

/** Loads the first page when a dependency changes, and keeps the older ones that were asked for. */
export function usePages<T>(ask: (cursor: string | undefined, signal?: AbortSignal) => Promise<Page<T>>, dependencies: unknown[]): Paged<T> {
  const key = JSON.stringify(dependencies);
  const [older, setOlder] = useState<{ key: string; items: T[]; next: string | null }>({ key: "", items: [], next: null });
  const first = useQuery(async (signal) => {
    const page = await ask(undefined, signal);
    // What is new moves the borders of the pages, so the older ones are read again from here.
    setOlder({ key, items: [], next: page.next ?? null });
    return page;
  }, dependencies);
  const known = older.key === key ? older : { key, items: [], next: first.data?.next ?? null };
  const more = () => attempt(async () => {
    const page = await ask(known.next ?? undefined);
    setOlder((old) => (old.key === key ? { key, items: [...old.items, ...page.items], next: page.next ?? null } : old));
  });
  return {
    ...first,
    data: first.data === undefined ? undefined : [...first.data.items, ...known.items],
    next: known.next,
    more,
  };
}

/** The button that loads what is older. */
export function OlderButton({ pages, text }: { pages: Paged<unknown>; text: string }) {
  if (pages.next === null) return null;
  return <p class="list-foot"><button type="button" class="button" onClick={pages.more}>{text}</button></p>;
}
