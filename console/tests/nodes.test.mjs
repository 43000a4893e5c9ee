// The executors of a fleet: which are well, which are left out and why. The server of this test has
// one that is well and one that nobody listens for.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { assertNoComplaints, openBrowser, openPage, signInAsOperator, visit } from "./support.mjs";

let browser;
let page;

before(async () => {
  browser = await openBrowser();
  page = await openPage(browser);
  await signInAsOperator(page);
});
after(async () => {
  await browser?.close();
});

test("operators see each executor and why one is left out", async () => {
  await visit(page, "/", "Overview");
  await page.getByRole("link", { name: "Nodes" }).click();
  await page.getByRole("heading", { level: 1, name: "Nodes" }).waitFor();
  const rows = page.getByRole("region", { name: "Nodes" }).getByRole("row");
  const well = rows.filter({ hasText: process.env.CLOCHE_NODE });
  await well.getByText("up", { exact: true }).waitFor();
  await rows.filter({ hasText: "127.0.0.1:9/" }).getByText("it cannot be reached").waitFor();
  assert.equal(await rows.count(), 3);
  await page.getByText("1 of 2 well").waitFor();
  assertNoComplaints(page);
});
