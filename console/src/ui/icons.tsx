// The icons: strokes on a grid of 24.
const PATHS = {
  overview: "M4 13h4v7H4zM10 4h4v16h-4zM16 9h4v11h-4z",
  executions: "M4 6h16M4 12h16M4 18h10",
  playground: "M8 5l10 7-10 7z",
  threads: "M6 4v9a4 4 0 0 0 4 4h8M6 8h8a4 4 0 0 1 4 4M15 14l3 3-3 3",
  responses: "M4 5h16v11H9l-5 4z",
  approvals: "M12 3l7 3v5c0 5-3 8-7 10-4-2-7-5-7-10V6zM9 12l2 2 4-4",
  sandboxes: "M4 8l8-4 8 4v8l-8 4-8-4zM4 8l8 4 8-4M12 12v8",
  keys: "M14 10a4 4 0 1 0-3.5 4L12 15.500h2v2h2v2h3v-3l-5.3-5.3",
  images: "M4 7l8-4 8 4-8 4zM4 12l8 4 8-4M4 17l8 4 8-4",
  storage: "M4 6c0-1.7 3.6-3 8-3s8 1.3 8 3-3.6 3-8 3-8-1.3-8-3zM4 6v12c0 1.7 3.6 3 8 3s8-1.3 8-3V6M4 12c0 1.7 3.6 3 8 3s8-1.3 8-3",
  volumes: "M4 7a2 2 0 0 1 2-2h4l2 2h6a2 2 0 0 1 2 2v8a2 2 0 0 1-2 2H6a2 2 0 0 1-2-2z",
  credentials: "M7 11V8a5 5 0 0 1 10 0v3M5 11h14v9H5zM12 15v2",
  network: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM3 12h18M12 3c3 3 3 15 0 18M12 3c-3 3-3 15 0 18",
  nodes: "M4 4h16v6H4zM4 14h16v6H4zM8 7h.01M8 17h.01",
  teams: "M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM2.5 20a6.5 6.5 0 0 1 13 0M16 4.500a3.5 3.5 0 0 1 0 6.500M18 14.500a6.5 6.5 0 0 1 3.5 5.5",
  usage: "M4 20V4M4 20h16M8 16l4-5 3 3 5-7",
  audit: "M6 3h9l4 4v14H6zM14 3v5h5M9 13h7M9 17h5",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.500v5M9 14.500v5",
  docs: "M5 4h6a3 3 0 0 1 3 3v13a3 3 0 0 0-3-2H5zM19 4h-2a3 3 0 0 0-3 3v13a3 3 0 0 1 3-2h2z",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l4 4",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.500M17.5 17.500L19 19M19 5l-1.5 1.500M6.5 17.500L5 19",
  moon: "M20 14.500A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.500z",
  exit: "M10 4H5v16h5M14 8l4 4-4 4M18 12H9",
  plus: "M12 5v14M5 12h14",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  refresh: "M20 11a8 8 0 1 0-2 6M20 5v6h-6",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
  file: "M7 3h7l4 4v14H7zM13 3v5h5",
  stop: "M7 7h10v10H7z",
  check: "M5 12l5 5L19 7",
  back: "M15 5l-7 7 7 7",
  fork: "M7 5v5a3 3 0 0 0 3 3h4a3 3 0 0 0 3-3V5M12 13v6",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.7" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Logo() {
  return (
    <svg viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="#0b6b57" />
      <path d="M8 22v-5a8 8 0 0 1 16 0v5M6 22.500h20M16 9V6.8" fill="none" stroke="#fff" stroke-width="2" stroke-linecap="round" />
      <circle cx="16" cy="6" r="1.6" fill="#fff" />
    </svg>
  );
}
