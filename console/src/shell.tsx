// The frame: menu, team, who is signed in, and the keyboard.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { api, unwrap } from "./api/client";
import { isLive, pendingApprovals } from "./events";
import { Palette, ShortcutHelp, watchKeys } from "./palette";
import { hrefOf, place } from "./router";
import { MENU, type MenuEntry } from "./routes";
import { chooseTeam, isOperator, mayOwn, session, signOut, teamName } from "./session";
import { theme, toggleTheme } from "./theme";
import { Icon, Logo } from "./ui/icons";
import { useQuery } from "./ui/query";

export function visibleEntries(entries: MenuEntry[]): MenuEntry[] {
  return entries.filter((entry) =>
    entry.only === undefined || (entry.only === "operator" ? isOperator.value : mayOwn.value));
}

export function Shell({ children }: { children: ComponentChildren }) {
  const [menuOpen, setMenuOpen] = useState(false);
  const [overlay, setOverlay] = useState<"palette" | "help" | null>(null);
  const main = useRef<HTMLElement>(null);
  const path = place.value.path;
  const firstPath = useRef(path);
  useEffect(() => watchKeys(() => setOverlay("palette"), () => setOverlay("help")), []);
  useEffect(() => {
    setMenuOpen(false);
    setOverlay(null);
    // The focus follows to the new page, so that a screen reader begins there.
    if (firstPath.current !== path) main.current?.focus({ preventScroll: true });
    firstPath.current = path;
  }, [path]);
  return (
    <div class="shell">
      <a class="skip" href="#main">Skip to the content</a>
      <header class="topbar">
        <button type="button" class="button quiet icon" aria-label="Menu" aria-expanded={menuOpen} onClick={() => setMenuOpen(true)}>
          <Icon name="menu" />
        </button>
        <a class="brand" href={hrefOf("/")}><Logo /> Cloche</a>
        <button type="button" class="button quiet icon" aria-label="Find a page" onClick={() => setOverlay("palette")}>
          <Icon name="search" />
        </button>
      </header>
      {menuOpen && <button type="button" class="scrim" aria-label="Close the menu" onClick={() => setMenuOpen(false)} />}
      <Sidebar open={menuOpen} onSearch={() => setOverlay("palette")} />
      <main class="main" id="main" tabIndex={-1} ref={main}>
        {isLive.value === false && (
          <div class="offline" role="status">Live updates are interrupted. The console is trying to reconnect.</div>
        )}
        {children}
      </main>
      {overlay === "palette" && <Palette onClose={() => setOverlay(null)} />}
      {overlay === "help" && <ShortcutHelp onClose={() => setOverlay(null)} />}
    </div>
  );
}

function Sidebar({ open, onSearch }: { open: boolean; onSearch: () => void }) {
  const path = place.value.path;
  const isCurrent = (entry: MenuEntry) =>
    entry.path === "/" ? path === "/" : path === entry.path || path.startsWith(`${entry.path}/`);
  return (
    <aside class={`sidebar ${open ? "open" : ""}`} aria-label="Console">
      <a class="brand" href={hrefOf("/")}><Logo /> Cloche</a>
      <button type="button" class="search-hint" onClick={onSearch}>
        <Icon name="search" /> Go to… <kbd>/</kbd>
      </button>
      <TeamPicker />
      <nav class="nav" aria-label="Pages">
        {MENU.map((group) => (
          <div key={group.title}>
            <div class="nav-title">{group.title}</div>
            {visibleEntries(group.entries).map((entry) => (
              <a key={entry.path} href={hrefOf(entry.path)} aria-current={isCurrent(entry) ? "page" : undefined}>
                <Icon name={entry.icon} />
                {entry.title}
                {entry.path === "/approvals" && pendingApprovals.value > 0 && (
                  <span class="count" aria-label={`${pendingApprovals.value} waiting`}>{pendingApprovals.value}</span>
                )}
              </a>
            ))}
          </div>
        ))}
      </nav>
      <div class="sidebar-foot">
        <div class="who">
          <strong title={session.value?.name}>{session.value?.name}</strong>
          <span>{session.value?.role}</span>
        </div>
        <button type="button" class="button quiet icon" aria-label={theme.value === "dark" ? "Light colours" : "Dark colours"} onClick={toggleTheme}>
          <Icon name={theme.value === "dark" ? "sun" : "moon"} />
        </button>
        <button type="button" class="button quiet icon" aria-label="Sign out" title="Sign out" onClick={() => signOut()}>
          <Icon name="exit" />
        </button>
      </div>
    </aside>
  );
}

function TeamPicker() {
  const operator = isOperator.value;
  const teams = useQuery(
    async () => (operator ? (await unwrap(api.GET("/v1/admin/teams"))).teams.map((team) => team.name) : []),
    [operator, teamName.value],
  );
  if (!operator) return <div class="nav-title">Team {teamName.value}</div>;
  const names = teams.data ?? [teamName.value];
  return (
    <div class="team-picker">
      <label class="visually-hidden" for="team">Team</label>
      <select id="team" class="select" value={teamName.value} onChange={(event) => chooseTeam(event.currentTarget.value)}>
        {(names.includes(teamName.value) ? names : [teamName.value, ...names]).map((name) => (
          <option key={name} value={name} selected={name === teamName.value}>{name}</option>
        ))}
      </select>
    </div>
  );
}
