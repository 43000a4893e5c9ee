// Sign-on by an OpenID provider from outside, which is another site for the browser.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { assertNoComplaints, openBrowser, openPage, signInAsOperator, URL_OF_SERVER, visit } from "./support.mjs";

const ISSUER = process.env.CLOCHE_OIDC_ISSUER;
const pictures = process.env.CLOCHE_SCREENSHOTS;
let browser;

before(async () => {
  browser = await openBrowser();
});
after(async () => {
  await browser?.close();
});

/** Goes from a page of the console to the provider. */
async function leave(page, path) {
  await page.goto(`${URL_OF_SERVER}/console${path}`);
  await page.getByRole("link", { name: "Sign in with Example" }).click();
  await page.waitForURL(`${ISSUER}/**`);
}

test("someone whom a rule names comes back to the page that they wanted", async () => {
  const page = await openPage(browser);
  await page.goto(`${URL_OF_SERVER}/console/`);
  await page.getByRole("link", { name: "Sign in with Example" }).waitFor();
  if (pictures !== undefined) await page.screenshot({ path: join(pictures, "sign-on-1440.png") });
  await leave(page, "/executions?status=failed");
  await page.getByRole("button", { name: "ada", exact: true }).click();
  await page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
  assert.equal(new URL(page.url()).search, "?status=failed");
  const session = await page.evaluate(async () => (await fetch("/console/api/session")).json());
  assert.equal(session.name, "ada@example.com");
  assert.equal(session.role, "operator");
  const cookies = await page.context().cookies(URL_OF_SERVER);
  assert.deepEqual(cookies.map((each) => [each.name, each.httpOnly, each.sameSite]), [["cloche_session", true, "Strict"]]);
  // The same browser is let in again without a question of ours.
  await page.reload();
  await page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
  // Pages of the provider load what they like.
  page.complaints = page.complaints.filter((each) => !each.startsWith("request elsewhere: "));
  assertNoComplaints(page);
  await page.context().close();
});

test("a stranger and someone who says no read why they are outside", async () => {
  const page = await openPage(browser);
  await leave(page, "/");
  await page.getByRole("button", { name: "eve", exact: true }).click();
  await page.getByText("No team of this server knows your email").waitFor();
  if (pictures !== undefined) await page.screenshot({ path: join(pictures, "sign-on-refused-1440.png") });
  await leave(page, "/");
  await page.getByRole("button", { name: "Deny" }).click();
  await page.getByRole("status").getByText("The sign-in was cancelled").waitFor();
  // A text of someone else is not shown.
  await page.goto(`${URL_OF_SERVER}/console/?sso=Call%20this%20number&error=Call%20this%20number`);
  await page.getByRole("button", { name: "Sign in", exact: true }).waitFor();
  assert.equal(await page.getByText("Call this number").count(), 0);
  await page.context().close();
});

test("the audit log has who came in and who did not", async () => {
  const page = await openPage(browser);
  await signInAsOperator(page);
  await visit(page, "/audit?all=1", "Audit log");
  await page.getByRole("cell").getByText("ada@example.com").first().waitFor();
  await page.getByRole("cell").getByText("eve@elsewhere.test").first().waitFor();
  await page.context().close();
});
