// Where the visitor is: the path below /console and its query, as signals.
import { signal } from "@preact/signals";

const BASE = "/console";

export interface Place {
  path: string;
  query: URLSearchParams;
}

function readPlace(): Place {
  const path = location.pathname.startsWith(BASE) ? location.pathname.slice(BASE.length) : "/";
  return { path: path === "" ? "/" : path, query: new URLSearchParams(location.search) };
}

export const place = signal<Place>(readPlace());

/** The address of a page, for links. */
export function hrefOf(path: string, query?: Record<string, string | null | undefined>): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== null && value !== undefined && value !== "") search.set(name, value);
  }
  const text = search.toString();
  return BASE + path + (text === "" ? "" : `?${text}`);
}

/** Goes to a page. */
export function navigate(href: string, options: { replace?: boolean } = {}): void {
  if (options.replace === true) history.replaceState(null, "", href);
  else history.pushState(null, "", href);
  place.value = readPlace();
  if (options.replace !== true) scrollTo(0, 0);
}

/** Changes parts of the query without a new entry in the history; empty values are removed. */
export function setQuery(changes: Record<string, string | null>): void {
  const query = new URLSearchParams(place.value.query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  navigate(BASE + place.value.path + (text === "" ? "" : `?${text}`), { replace: true });
}

/** Follows links of the console without loading the page again. */
export function startRouter(): void {
  addEventListener("popstate", () => {
    place.value = readPlace();
  });
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element | null)?.closest("a");
    if (link === null || link === undefined || link.target !== "" || link.hasAttribute("download")) return;
    if (link.origin !== location.origin) return;
    if (link.pathname !== BASE && !link.pathname.startsWith(`${BASE}/`)) return;
    if (link.pathname.startsWith(`${BASE}/api/`) || link.hash !== "") return;
    event.preventDefault();
    navigate(link.pathname + link.search);
  });
}

/** Matches `/threads/:id`. Returns the values, or null. */
export function matchPath(pattern: string, path: string): Record<string, string> | null {
  const wanted = pattern.split("/");
  const given = path.replace(/\/+$/, "").split("/");
  if (path === "/" ? pattern !== "/" : wanted.length !== given.length) return null;
  const values: Record<string, string> = {};
  if (path === "/") return values;
  for (const [at, part] of wanted.entries()) {
    const text = given[at] ?? "";
    if (part.startsWith(":")) {
      try {
        values[part.slice(1)] = decodeURIComponent(text);
      } catch {
        return null;
      }
    } else if (part !== text) return null;
  }
  return values;
}
