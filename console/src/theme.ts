// Light or dark: as the system says, or as the visitor chose.
import { effect, signal } from "@preact/signals";

const KEY = "cloche.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const chosen = signal<string | null>(localStorage.getItem(KEY));
const systemDark = signal(system.matches);

export const theme = signal<"light" | "dark">("light");

export function startTheme(): void {
  system.addEventListener("change", () => {
    systemDark.value = system.matches;
  });
  effect(() => {
    const dark = chosen.value === null ? systemDark.value : chosen.value === "dark";
    theme.value = dark ? "dark" : "light";
    document.documentElement.dataset.theme = theme.value;
  });
}

export function toggleTheme(): void {
  const next = theme.value === "dark" ? "light" : "dark";
  // The choice of the system needs no setting.
  if ((next === "dark") === systemDark.value) {
    localStorage.removeItem(KEY);
    chosen.value = null;
  } else {
    localStorage.setItem(KEY, next);
    chosen.value = next;
  }
}
