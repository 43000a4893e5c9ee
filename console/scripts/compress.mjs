// Writes X.br and X.gz beside each file of the build, which the server sends as they are.
import { readdir, readFile, writeFile } from "node:fs/promises";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const dist = new URL("../dist/", import.meta.url);
const names = (await readdir(dist, { recursive: true, withFileTypes: true }))
  .filter((entry) => entry.isFile() && !/^\.|\.(br|gz)$/.test(entry.name))
  .map((entry) => new URL(entry.name, `file://${(entry.parentPath ?? entry.path).replace(/\/?$/, "/")}`));
for (const name of names) {
  const bytes = await readFile(name);
  const params = { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length };
  await writeFile(`${name.pathname}.br`, brotliCompressSync(bytes, { params }));
  await writeFile(`${name.pathname}.gz`, gzipSync(bytes, { level: 9 }));
}
