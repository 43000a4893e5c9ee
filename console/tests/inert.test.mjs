// What tenants and agents write is shown as text: in every field, nothing of it runs or becomes an
// element, and the policy of the page is never even asked.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import {
  URL_OF_SERVER, assertNoComplaints, call, eventually, execute, openBrowser, openPage, signInAsOperator, visit,
} from "./support.mjs";

const ATTACK = `<img src=x onerror="window.hacked=1"><script>window.hacked=2</script><b data-hacked>"'\`\${7*7}{{7*7}}`;
const SVG = `<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40" onload="window.hacked=3"><script>window.hacked=4</script><rect width="40" height="40"/></svg>`;
const LINK = "\\x1b]8;;javascript:window.hacked=5\\x1b\\\\click\\x1b]8;;\\x1b\\\\";
let browser;
let page;

before(async () => {
  browser = await openBrowser();
  page = await openPage(browser, { userAgent: `Mozilla/5.0 ${ATTACK}` });
});
after(async () => {
  await browser?.close();
});

async function assertInert(where, target = page) {
  const found = await target.evaluate(() => ({
    hacked: window.hacked ?? null,
    elements: document.querySelectorAll("[data-hacked], img[src='x'], #app script, a[href^='javascript:']").length,
  }));
  assert.deepEqual(found, { hacked: null, elements: 0 }, where);
  assert.deepEqual(target.complaints, [], where);
}

test("the sign-in page shows no words of its address", async () => {
  const words = encodeURIComponent(ATTACK);
  await page.goto(`${URL_OF_SERVER}/console/?sso=${words}&error=${words}`);
  await page.getByText("The sign-in failed").waitFor();
  assert.equal(await page.getByText("data-hacked").count(), 0);
  await assertInert("sign-in");
  await signInAsOperator(page);
});

test("code, output, metadata and files of an execution are text", async () => {
  const program = [
    `print(${JSON.stringify(ATTACK)})`,
    `print("${LINK} \\x1b[2J\\x1b]0;title\\x07 \\x1b[1;31mred")`,
    `import sys; print(${JSON.stringify(ATTACK)}, file=sys.stderr)`,
    `open('<b data-hacked>.html', 'w').write(${JSON.stringify(ATTACK)})`,
    `open('picture.svg', 'w').write(${JSON.stringify(SVG)})`,
    `open('table.csv', 'w').write('a,b\\n' + ${JSON.stringify(ATTACK.replaceAll('"', ""))} + ',2\\n')`,
    `open('data.json', 'w').write('{"a": "<b data-hacked>"}')`,
    `open('text\\u202e.txt', 'w').write('x')`,
    `# ${ATTACK}`,
  ].join("\n");
  const { id } = await execute({ code: program, metadata: { note: ATTACK, "x<b data-hacked>": "1" } }).catch(async () =>
    // A server that refuses such a name of a label still takes the value.
    execute({ code: program, metadata: { note: ATTACK } }));
  await visit(page, "/executions", "Executions");
  await page.getByRole("link", { name: id }).waitFor();
  await assertInert("executions");
  await visit(page, `/executions/${id}`, id);
  await page.getByRole("region", { name: "stdout" }).getByText("data-hacked").first().waitFor();
  await page.getByRole("textbox", { name: "Code" }).getByText("data-hacked").first().waitFor();
  assert.equal(await page.getByRole("region", { name: "stdout" }).getByRole("link").count(), 0);
  await assertInert("execution");
  for (const [name, sign] of [
    ["<b data-hacked>.html", "textbox"], ["picture.svg", "img"], ["table.csv", "table"], ["data.json", "textbox"], [/text/, "textbox"],
  ]) {
    await page.getByRole("region", { name: "Files" }).getByRole("button", { name }).first().click();
    await page.getByRole("region", { name: "Files" }).getByRole(sign).first().waitFor();
    await assertInert(`preview of ${name}`);
  }
  // The direction of the name is not turned around.
  assert.ok((await page.getByRole("region", { name: "Files" }).innerText()).includes("\\u{202e}"));
  // Opened by itself, a file is a download and not a page of this origin.
  const address = `/v1/executions/${id}/files/${encodeURIComponent("<b data-hacked>.html")}`;
  const headers = await page.evaluate(async (path) => {
    const answer = await fetch(path);
    return { status: answer.status, disposition: answer.headers.get("content-disposition"), sniff: answer.headers.get("x-content-type-options") };
  }, address);
  assert.equal(headers.status, 200);
  assert.match(headers.disposition ?? "", /^attachment/);
  assert.equal(headers.sniff, "nosniff");
});

test("what an agent asks for is text", async () => {
  await call("PATCH", "/v1/admin/defaults", { agent_sandbox: true });
  const params = { name: "execute_code", arguments: { language: "python", code: `# ${ATTACK}\n# hidden \u202e\u200b end`, thread_id: "inert" } };
  await execute({ code: `open('<b data-hacked>', 'w').write(${JSON.stringify(ATTACK)})`, thread_id: "inert" });
  const stop = new AbortController();
  const answer = fetch(`${URL_OF_SERVER}/mcp`, {
    method: "POST", signal: stop.signal,
    headers: { Authorization: `Bearer ${process.env.CLOCHE_API_KEY}`, "Content-Type": "application/json", Accept: "application/json, text/event-stream" },
    body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params }),
  }).catch(() => null);
  await visit(page, "/approvals", "Approvals");
  await page.getByRole("link", { name: "Review" }).click();
  const code = page.getByRole("region", { name: "code" });
  await code.getByText("data-hacked").first().waitFor();
  const shown = await code.innerText();
  assert.ok(shown.includes("\\u{202e}") && shown.includes("\\u{200b}"), shown);
  await assertInert("approval");
  await page.getByRole("button", { name: "Deny" }).click();
  await page.getByLabel("Reason").fill(ATTACK);
  await page.getByRole("dialog").getByRole("button", { name: "Deny" }).click();
  await page.getByRole("dialog").waitFor({ state: "detached" });
  stop.abort();
  await answer;
  await page.getByText("data-hacked").first().waitFor();
  await assertInert("denied approval");
});

test("names in the address, variables, browsers and files of threads are text", async () => {
  await page.goto(`${URL_OF_SERVER}/console/threads/${encodeURIComponent(ATTACK)}`);
  await page.getByRole("alert").waitFor();
  await assertInert("thread of the address");
  await page.goto(`${URL_OF_SERVER}/console/executions?q=${encodeURIComponent(ATTACK)}&metadata.note=${encodeURIComponent(ATTACK)}&thread_id=${encodeURIComponent(ATTACK)}`);
  await page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
  await page.getByRole("button", { name: /Remove the filter metadata/ }).waitFor();
  await assertInert("filters");
  await visit(page, "/threads/inert?view=files", "inert");
  await page.getByRole("button", { name: "<b data-hacked>" }).click();
  await page.getByRole("textbox", { name: "<b data-hacked>" }).waitFor();
  await assertInert("files of a thread");
  await visit(page, "/threads/inert?view=diff", "inert");
  await page.getByRole("button", { name: /data-hacked/ }).click();
  await page.getByRole("region", { name: /Changes of/ }).waitFor();
  await assertInert("difference");
  await call("POST", "/v1/admin/sandboxes", { team: "default", name: "inert", env_vars: { NOTE: ATTACK } });
  await visit(page, "/sandboxes", "Sandboxes");
  await page.getByRole("button", { name: "Edit inert" }).click();
  assert.equal(await page.getByLabel("Value of variable 1").inputValue(), ATTACK);
  await assertInert("variables");
  await visit(page, "/settings", "Settings");
  await page.getByText("data-hacked").first().waitFor();
  await assertInert("browser of a session");
  await visit(page, "/audit", "Audit log");
  await page.getByRole("region", { name: "Audit log" }).getByRole("table").waitFor();
  await assertInert("audit log");
});

test("the page has a strict policy and cannot be framed", async () => {
  const answer = await fetch(`${URL_OF_SERVER}/console/`);
  const policy = answer.headers.get("content-security-policy") ?? "";
  for (const part of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"]) {
    assert.ok(policy.includes(part), `${part} is not in ${policy}`);
  }
  assert.ok(!policy.includes("unsafe"), policy);
  // The policy is in force: an inline script that something would inject does not run.
  const probe = await openPage(browser);
  await probe.goto(`${URL_OF_SERVER}/console/`);
  await probe.evaluate(() => {
    try {
      const made = document.createElement("script");
      made.textContent = "window.hacked = 9";
      document.body.append(made);
    } catch {
      // Trusted types refuse it even earlier.
    }
  });
  await eventually("the policy stops it", () => probe.complaints.some((text) => /script-src|trusted-types/.test(text)));
  assert.equal(await probe.evaluate(() => window.hacked ?? null), null);
  await probe.context().close();
});

test("nothing of all this broke the policy or threw", () => assertNoComplaints(page));
