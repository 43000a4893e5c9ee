// The pages: where they are, what loads them, and who sees them in the menu.
import type { ComponentType } from "preact";
import type { IconName } from "./ui/icons";

export type PageProps = { params: Record<string, string> };
type Page = ComponentType<PageProps>;

export interface Route {
  pattern: string;
  title: string;
  load: () => Promise<{ default: Page }>;
}

export interface MenuEntry {
  path: string;
  title: string;
  icon: IconName;
  /** The second key of the go-to shortcut. */
  key?: string;
  /** Which roles see it; every role if absent. */
  only?: "operator" | "owner";
}

export const ROUTES: Route[] = [
  { pattern: "/", title: "Overview", load: () => import("./pages/overview") },
  { pattern: "/executions", title: "Executions", load: () => import("./pages/executions") },
  { pattern: "/executions/:id", title: "Execution", load: () => import("./pages/execution") },
  { pattern: "/playground", title: "Playground", load: () => import("./pages/playground") },
  { pattern: "/threads", title: "Threads", load: () => import("./pages/threads") },
  { pattern: "/threads/:id", title: "Thread", load: () => import("./pages/thread") },
  { pattern: "/responses", title: "Agent responses", load: () => import("./pages/responses") },
  { pattern: "/responses/:id", title: "Agent response", load: () => import("./pages/response") },
  { pattern: "/approvals", title: "Approvals", load: () => import("./pages/approvals") },
  { pattern: "/approvals/:id", title: "Approval", load: () => import("./pages/approval") },
  { pattern: "/sandboxes", title: "Sandboxes", load: () => import("./pages/sandboxes") },
  { pattern: "/keys", title: "Keys", load: () => import("./pages/keys") },
  { pattern: "/images", title: "Images", load: () => import("./pages/images") },
  { pattern: "/storage", title: "Storage", load: () => import("./pages/storage") },
  { pattern: "/volumes", title: "Volumes", load: () => import("./pages/volumes") },
  { pattern: "/credentials", title: "Credentials", load: () => import("./pages/credentials") },
  { pattern: "/network", title: "Network policies", load: () => import("./pages/network") },
  { pattern: "/nodes", title: "Nodes", load: () => import("./pages/nodes") },
  { pattern: "/teams", title: "Teams", load: () => import("./pages/teams") },
  { pattern: "/members", title: "Members", load: () => import("./pages/members") },
  { pattern: "/usage", title: "Usage", load: () => import("./pages/usage") },
  { pattern: "/audit", title: "Audit log", load: () => import("./pages/audit") },
  { pattern: "/settings", title: "Settings", load: () => import("./pages/settings") },
  { pattern: "/api-docs", title: "API", load: () => import("./pages/api-docs") },
];

export const MENU: { title: string; entries: MenuEntry[] }[] = [
  {
    title: "Run",
    entries: [
      { path: "/", title: "Overview", icon: "overview", key: "o" },
      { path: "/executions", title: "Executions", icon: "executions", key: "e" },
      { path: "/playground", title: "Playground", icon: "playground", key: "p" },
      { path: "/threads", title: "Threads", icon: "threads", key: "t" },
    ],
  },
  {
    title: "Agents",
    entries: [
      { path: "/approvals", title: "Approvals", icon: "approvals", key: "a" },
      { path: "/responses", title: "Responses", icon: "responses", key: "r" },
    ],
  },
  {
    title: "Configure",
    entries: [
      { path: "/sandboxes", title: "Sandboxes", icon: "sandboxes", key: "s" },
      { path: "/keys", title: "Keys", icon: "keys", key: "k" },
      { path: "/images", title: "Images", icon: "images", key: "i" },
      { path: "/network", title: "Network", icon: "network", key: "n" },
      { path: "/storage", title: "Storage", icon: "storage" },
      { path: "/volumes", title: "Volumes", icon: "volumes", key: "v" },
      { path: "/credentials", title: "Credentials", icon: "credentials", key: "c" },
    ],
  },
  {
    title: "Manage",
    entries: [
      { path: "/nodes", title: "Nodes", icon: "nodes", only: "operator" },
      { path: "/teams", title: "Teams", icon: "teams", only: "operator" },
      { path: "/members", title: "Members", icon: "teams", key: "m" },
      { path: "/usage", title: "Usage", icon: "usage", key: "u" },
      { path: "/audit", title: "Audit log", icon: "audit" },
      { path: "/settings", title: "Settings", icon: "settings" },
      { path: "/api-docs", title: "API", icon: "docs", key: "d" },
    ],
  },
];
