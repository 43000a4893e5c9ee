// Writes src/api/schema.ts from the OpenAPI description that the tests of the gateway hold fixed.
// So a change of the API that the console does not follow fails `tsc`, and with it the build.
import { readFile, writeFile } from "node:fs/promises";
import openapiTS, { astToString } from "openapi-typescript";

const snapshot = new URL(
  "../../crates/gateway/tests/api/snapshots/api__operations__openapi.snap",
  import.meta.url,
);
const target = new URL("../src/api/schema.ts", import.meta.url);

const text = await readFile(snapshot, "utf8");
const description = JSON.parse(text.slice(text.indexOf("\n---\n") + 5));
const types = astToString(await openapiTS(description, { defaultNonNullable: false }));
const written = `// Generated from the OpenAPI description by scripts/generate-types.mjs.\n${types}`;
const before = await readFile(target, "utf8").catch(() => "");
if (before !== written) {
  await writeFile(target, written);
}
