// Chooses what is shown: the sign-in page, or the frame with one page in it.
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { matchPath, place } from "./router";
import { type PageProps, ROUTES, type Route } from "./routes";
import { loadSession, session, teamName } from "./session";
import { Shell } from "./shell";
import { SignIn } from "./signin";
import { Empty, Failed, Loading, PageHead, Toasts } from "./ui/parts";

const loaded = new Map<string, ComponentType<PageProps>>();

export function App() {
  const [error, setError] = useState<Error | null>(null);
  const load = () => {
    setError(null);
    loadSession().catch(setError);
  };
  useEffect(load, []);
  let content = <div class="signin"><Loading lines={3} label="Checking your session" /></div>;
  if (error !== null) content = <div class="signin"><Failed error={error} retry={load} /></div>;
  else if (session.value === null) content = <SignIn />;
  else if (session.value !== undefined) content = <Shell><CurrentPage /></Shell>;
  return (
    <>
      {content}
      <Toasts />
    </>
  );
}

function CurrentPage() {
  const path = place.value.path;
  for (const route of ROUTES) {
    const params = matchPath(route.pattern, path);
    // A page of another team is another page.
    if (params !== null) return <LazyPage key={`${route.pattern} ${teamName.value} ${JSON.stringify(params)}`} route={route} params={params} />;
  }
  return (
    <><PageHead title="Nothing here" /><Empty icon="search" title="There is no such page">
      <p>Press <kbd>/</kbd> to find another.</p>
      <a class="button" href="/console/">Overview</a>
    </Empty></>
  );
}

function LazyPage({ route, params }: { route: Route; params: Record<string, string> }) {
  const [page, setPage] = useState<{ Page: ComponentType<PageProps> | undefined }>({ Page: loaded.get(route.pattern) });
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    document.title = `${route.title} · Cloche`;
    if (page.Page !== undefined) return;
    route.load().then(
      (module) => {
        loaded.set(route.pattern, module.default);
        setPage({ Page: module.default });
      },
      () => setError(new Error("This part of the console could not be loaded. It may have been updated: load the page again.")),
    );
  }, [route]);
  if (error !== null) return <Failed error={error} retry={() => location.reload()} />;
  if (page.Page === undefined) return <Loading label={`Loading ${route.title}`} />;
  const { Page } = page;
  return <Page params={params} />;
}
