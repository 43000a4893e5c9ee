// Fails if what a browser loads before it shows the first page exceeds the budget.
import { readFile } from "node:fs/promises";
import { brotliCompressSync, gzipSync } from "node:zlib";

const BUDGET = 200_000;
const dist = new URL("../dist/", import.meta.url);
const index = await readFile(new URL("index.html", dist), "utf8");
const names = [...index.matchAll(/(?:src|href)="\/console\/([^"]+)"/g)].map((match) => match[1]);
let gzip = gzipSync(index).length;
let brotli = brotliCompressSync(index).length;
for (const name of names) {
  const bytes = await readFile(new URL(name, dist));
  gzip += gzipSync(bytes).length;
  brotli += brotliCompressSync(bytes).length;
}
const kb = (bytes) => `${(bytes / 1000).toFixed(1)} kB`;
console.log(`initial load: ${kb(gzip)} gzip, ${kb(brotli)} brotli, ${names.length} files`);
if (/<style|<script(?![^>]*\ssrc=)|\sstyle=/.test(index)) {
  console.error("index.html has an inline script or style, which its policy forbids");
  process.exit(1);
}
if (gzip > BUDGET) {
  console.error(`the initial load exceeds ${kb(BUDGET)}`);
  process.exit(1);
}
