// The difference of two texts in lines, by the longest common subsequence.
export interface DiffLine {
  kind: "same" | "added" | "removed" | "gap";
  text: string;
}

const CONTEXT = 3;
// Above this many cells of the table the middle is shown as replaced.
const MOST_CELLS = 4_000_000;

export function diffLines(before: string, after: string): DiffLine[] {
  const split = (text: string) => (text === "" ? [] : text.replace(/\n$/, "").split("\n"));
  return foldSame(compareLines(split(before), split(after)));
}

function compareLines(a: string[], b: string[]): DiffLine[] {
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const same = (lines: string[]): DiffLine[] => lines.map((text) => ({ kind: "same", text }));
  const middle = compareMiddle(a.slice(start, a.length - end), b.slice(start, b.length - end));
  return [...same(a.slice(0, start)), ...middle, ...same(end === 0 ? [] : a.slice(-end))];
}

function compareMiddle(a: string[], b: string[]): DiffLine[] {
  const removed = (text: string): DiffLine => ({ kind: "removed", text });
  const added = (text: string): DiffLine => ({ kind: "added", text });
  if (a.length * b.length > MOST_CELLS) return [...a.map(removed), ...b.map(added)];
  const width = b.length + 1;
  const lengths = new Uint32Array((a.length + 1) * width);
  const at = (i: number, j: number) => lengths[i * width + j] ?? 0;
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      lengths[i * width + j] = a[i] === b[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const lines: DiffLine[] = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push({ kind: "same", text: a[i] ?? "" });
      i++;
      j++;
    } else if (j >= b.length || (i < a.length && at(i + 1, j) >= at(i, j + 1))) lines.push(removed(a[i++] ?? ""));
    else lines.push(added(b[j++] ?? ""));
  }
  return lines;
}

/** Leaves out lines that are far from every change. */
function foldSame(lines: DiffLine[]): DiffLine[] {
  const near = lines.map(() => false);
  for (const [at, line] of lines.entries()) {
    if (line.kind === "same") continue;
    for (let i = Math.max(0, at - CONTEXT); i <= Math.min(lines.length - 1, at + CONTEXT); i++) near[i] = true;
  }
  const shown: DiffLine[] = [];
  for (const [at, line] of lines.entries()) {
    if (near[at] === true) shown.push(line);
    else if (shown[shown.length - 1]?.kind !== "gap") shown.push({ kind: "gap", text: "" });
  }
  return shown;
}
