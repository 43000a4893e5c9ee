// Output of programs: escape sequences become classes, everything else is text. Nothing is ever
// read as HTML, no link is made, and sequences that move the cursor or set a title are dropped.
import type { ComponentChildren } from "preact";
import { memo } from "./memo";

interface Look {
  classes: string[];
  fore: string | null;
  back: string | null;
}

interface Pen {
  bold: boolean;
  dim: boolean;
  italic: boolean;
  under: boolean;
  strike: boolean;
  inverse: boolean;
  fore: number | string | null;
  back: number | string | null;
}

const PLAIN: Pen = { bold: false, dim: false, italic: false, under: false, strike: false, inverse: false, fore: null, back: null };

// CSI, OSC and other strings with their ends, and escapes of one character.
const ESCAPE =
  /\u001b\[([0-?]*)[ -/]*([@-~])|\u001b[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\|$)|\u001b[ -/]*[0-~]?|\u009b([0-?]*)[ -/]*([@-~])/g;

function readColour(codes: number[]): number | string | null {
  const kind = codes.shift();
  if (kind === 5) {
    const index = codes.shift() ?? 0;
    return index < 16 ? index : colourOfCube(index);
  }
  if (kind === 2) {
    const [r = 0, g = 0, b = 0] = codes.splice(0, 3);
    return `rgb(${r & 255} ${g & 255} ${b & 255})`;
  }
  return null;
}

function colourOfCube(index: number): string {
  if (index >= 232) {
    const level = 8 + (Math.min(index, 255) - 232) * 10;
    return `rgb(${level} ${level} ${level})`;
  }
  const steps = [0, 95, 135, 175, 215, 255];
  const cube = index - 16;
  return `rgb(${steps[Math.floor(cube / 36) % 6]} ${steps[Math.floor(cube / 6) % 6]} ${steps[cube % 6]})`;
}

function applyCodes(pen: Pen, text: string): Pen {
  const codes = text === "" ? [0] : text.split(/[;:]/).map((part) => Number(part) || 0);
  let next = { ...pen };
  while (codes.length > 0) {
    const code = codes.shift() ?? 0;
    if (code === 0) next = { ...PLAIN };
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.italic = true;
    else if (code === 4) next.under = true;
    else if (code === 7) next.inverse = true;
    else if (code === 9) next.strike = true;
    else if (code === 22) next.bold = next.dim = false;
    else if (code === 23) next.italic = false;
    else if (code === 24) next.under = false;
    else if (code === 27) next.inverse = false;
    else if (code === 29) next.strike = false;
    else if (code >= 30 && code <= 37) next.fore = code - 30;
    else if (code === 38) next.fore = readColour(codes);
    else if (code === 39) next.fore = null;
    else if (code >= 40 && code <= 47) next.back = code - 40;
    else if (code === 48) next.back = readColour(codes);
    else if (code === 49) next.back = null;
    else if (code >= 90 && code <= 97) next.fore = code - 90 + 8;
    else if (code >= 100 && code <= 107) next.back = code - 100;
  }
  return next;
}

function lookOf(pen: Pen): Look | null {
  const classes: string[] = [];
  let fore: string | null = null;
  let back: string | null = null;
  if (pen.bold) classes.push("a-bold");
  if (pen.dim) classes.push("a-dim");
  if (pen.italic) classes.push("a-italic");
  if (pen.under) classes.push("a-under");
  if (pen.strike) classes.push("a-strike");
  if (pen.inverse) classes.push("a-inverse");
  else if (typeof pen.fore === "number") classes.push(`a-f${pen.fore === 8 ? 8 : pen.fore % 8}`);
  else fore = pen.fore;
  if (typeof pen.back === "number") classes.push("a-b", `a-b${pen.back % 8}`);
  else back = pen.back;
  return classes.length === 0 && fore === null && back === null ? null : { classes, fore, back };
}

/** Applies carriage returns and backspaces within each line, as a terminal would. */
function settleLines(text: string): string {
  if (!/[\r\u0008]/.test(text)) return text;
  return text
    .replaceAll("\r\n", "\n")
    .split("\n")
    .map((line) => {
      const parts = line.split("\r").filter((part) => part !== "");
      let shown = parts[parts.length - 1] ?? "";
      while (/[^\u0008]\u0008/.test(shown)) shown = shown.replace(/[^\u0008]\u0008/g, "");
      return shown;
    })
    .join("\n");
}

const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

function plainText(text: string): string {
  return text.replace(CONTROL, (char) => {
    const code = char.charCodeAt(0);
    return code < 32 ? String.fromCharCode(0x2400 + code) : code === 127 ? "\u2421" : `\\u{${code.toString(16)}}`;
  });
}

/** The text of a program as nodes. */
export function renderAnsi(source: string): ComponentChildren[] {
  const text = settleLines(source);
  const nodes: ComponentChildren[] = [];
  let pen = PLAIN;
  let from = 0;
  const push = (piece: string) => {
    if (piece === "") return;
    const look = lookOf(pen);
    const shown = plainText(piece);
    if (look === null) {
      nodes.push(shown);
      return;
    }
    const style: Record<string, string> = {};
    if (look.fore !== null) style.color = look.fore;
    if (look.back !== null) style.backgroundColor = look.back;
    nodes.push(<span class={look.classes.join(" ")} style={style}>{shown}</span>);
  };
  for (const match of text.matchAll(ESCAPE)) {
    push(text.slice(from, match.index));
    from = match.index + match[0].length;
    if ((match[2] ?? match[4]) === "m") pen = applyCodes(pen, match[1] ?? match[3] ?? "");
  }
  push(text.slice(from));
  return nodes;
}

/** Output of one stream. */
export const Ansi = memo(function Ansi({ text }: { text: string }) {
  return <>{renderAnsi(text)}</>;
});
