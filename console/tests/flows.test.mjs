// What people do in the console, from the first sign-in on, one after the other on one server.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import {
  URL_OF_SERVER, assertNoComplaints, call, eventually, execute, openBrowser, openPage, signIn, signInAsOperator, visit, writeProgram,
} from "./support.mjs";

const run = promisify(execFile);
let browser;
let page;

before(async () => {
  browser = await openBrowser();
  page = await openPage(browser);
});
after(async () => {
  await browser?.close();
});

test("a wrong token is refused, the right one signs in", async () => {
  await page.goto(`${URL_OF_SERVER}/console/`);
  await page.getByRole("tab", { name: "Admin token" }).click();
  await page.getByLabel("Admin token", { exact: true }).fill("ck-admin-wrong");
  await page.getByRole("button", { name: "Sign in", exact: true }).click();
  await page.getByRole("alert").waitFor();
  await signInAsOperator(page);
  await page.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
  const cookies = await page.context().cookies();
  const session = cookies.find((cookie) => cookie.name === "cloche_session");
  assert.equal(session?.httpOnly, true);
  assert.equal(session?.sameSite, "Strict");
  assert.equal(await page.evaluate(() => document.cookie), "");
});

test("a sandbox and a key are created and used with curl", async () => {
  await visit(page, "/sandboxes", "Sandboxes");
  await page.getByRole("button", { name: "New sandbox" }).click();
  await page.getByLabel("Name", { exact: true }).fill("Not A Name");
  await page.getByLabel("Memory in MB").fill("256");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  // The server's own words, at the field.
  const name = page.getByLabel("Name", { exact: true });
  await page.getByRole("dialog").getByRole("alert").waitFor();
  assert.equal(await name.getAttribute("aria-invalid"), "true");
  await name.fill("from-console");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await page.getByRole("button", { name: "from-console", exact: true }).waitFor();
  const { body } = await call("GET", "/v1/admin/sandboxes");
  const sandbox = body.sandboxes.find((each) => each.name === "from-console");
  assert.equal(sandbox.memory_mb, 256);

  await visit(page, "/keys?create=1", "Keys");
  await page.getByLabel("Name", { exact: true }).fill("curl");
  await page.getByRole("dialog").getByLabel("Sandbox").selectOption({ label: "from-console" });
  await page.getByRole("button", { name: "Create", exact: true }).click();
  const secret = await page.getByRole("dialog").locator("code").first().innerText();
  assert.match(secret, /^sk-/);
  await page.getByRole("button", { name: "Copy the key" }).click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), secret);
  await page.getByRole("button", { name: "I have stored it" }).click();
  assert.ok(!(await page.content()).includes(secret), "the secret is still in the page");
  const { stdout } = await run("curl", [
    "-sS", `${URL_OF_SERVER}/v1/sandbox/execute`, "-H", `Authorization: Bearer ${secret}`,
    "-H", "Content-Type: application/json", "-d", JSON.stringify({ code: "print(6 * 7)" }),
  ]);
  assert.equal(JSON.parse(stdout).stdout, "42\n");

  // Editing keeps what is not touched, and deleting asks first.
  await visit(page, "/sandboxes", "Sandboxes");
  await page.getByRole("button", { name: "Edit from-console" }).click();
  await page.getByLabel("Processes").fill("40");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await eventually("the sandbox is changed", async () => {
    const answer = await call("GET", `/v1/admin/sandboxes/${sandbox.id}`);
    return answer.body.pids === 40 && answer.body.memory_mb === 256;
  });
});

test("output streams into the playground, and cancelling stops the program", async () => {
  await visit(page, "/playground", "Playground");
  await writeProgram(page, "import time\nprint('first line', flush=True)\ntime.sleep(600)\n");
  await page.keyboard.press("Control+Enter");
  const output = page.getByRole("log", { name: "Output" });
  await output.getByText("first line").waitFor();
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("region", { name: "Result" }).getByText("cancelled", { exact: true }).waitFor();

  await writeProgram(page, "import sys\nprint('\\x1b[31mred\\x1b[0m plain')\nprint('<b>bold</b>')\nprint(sys.stdin.read())\nopen('table.csv', 'w').write('a,b\\n1,2\\n')");
  await page.getByText("Standard input").first().click();
  await page.getByLabel("Standard input").fill("from stdin");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await output.getByText("from stdin").waitFor();
  await page.getByRole("region", { name: "Result" }).getByText("success", { exact: true }).waitFor();
  assert.equal(await output.locator(".a-f1").innerText(), "red");
  assert.ok((await output.innerText()).includes("<b>bold</b>"));
  await page.getByRole("button", { name: "As code" }).click();
  await page.getByRole("tab", { name: "Python" }).click();
  await page.getByRole("textbox", { name: "Snippet" }).getByText("urllib.request.urlopen").first().waitFor();
  await page.keyboard.press("Escape");

  // The details have the code, the file and its table; running it again brings the code back.
  await page.getByRole("link", { name: "Details" }).click();
  await page.getByRole("button", { name: "table.csv" }).click();
  await page.getByRole("columnheader", { name: "b", exact: true }).waitFor();
  await page.getByRole("link", { name: "Run again" }).click();
  await page.getByRole("textbox", { name: "Program" }).getByText("table.csv").waitFor();
});

test("the snippet for curl works as it stands", async () => {
  await visit(page, "/playground", "Playground");
  await writeProgram(page, "print('it''s \"quoted\" $HOME `x`')");
  await page.getByRole("button", { name: "As code" }).click();
  await page.getByRole("button", { name: "Copy the snippet" }).click();
  const snippet = await page.evaluate(() => navigator.clipboard.readText());
  const { stdout } = await run("sh", ["-c", snippet], { env: { ...process.env, CLOCHE_API_KEY: process.env.CLOCHE_API_KEY } });
  assert.equal(JSON.parse(stdout).stdout, "its \"quoted\" $HOME `x`\n");
  await page.keyboard.press("Escape");
});

test("the history is filtered by metadata, and the address of the view can be shared", async () => {
  const wanted = await execute({ code: "print('wanted')", metadata: { order: "o-17", agent: "a" } });
  const other = await execute({ code: "print('other')", metadata: { order: "o-18", agent: "a" } });
  await visit(page, "/executions", "Executions");
  const rows = page.getByRole("table", { name: "Executions" });
  await rows.getByRole("link", { name: other.id }).waitFor();
  await page.getByRole("button", { name: "Metadata" }).click();
  await page.getByLabel("Metadata as key=value").fill("order=o-17");
  await page.keyboard.press("Enter");
  await rows.getByRole("link", { name: wanted.id }).waitFor();
  await rows.getByRole("link", { name: other.id }).waitFor({ state: "detached" });
  const shared = page.url();
  assert.match(shared, /metadata\.order=o-17/);
  const second = await page.context().newPage();
  await second.goto(shared);
  await second.getByRole("link", { name: wanted.id }).waitFor();
  assert.equal(await second.getByRole("link", { name: other.id }).count(), 0);
  await second.close();
  await page.getByRole("link", { name: "Clear" }).click();
  await rows.getByRole("link", { name: other.id }).waitFor();
});

test("full text finds words of code and output", async () => {
  const found = await execute({ code: "print('zanzibar ' + 'quokka')" });
  await execute({ code: "print('nothing of that')" });
  await visit(page, "/executions", "Executions");
  await page.keyboard.press("/");
  await page.keyboard.insertText("quokka");
  const rows = page.getByRole("table", { name: "Executions" });
  await eventually("only one row is left", async () => (await rows.locator(".virtual-row").count()) === 1);
  await rows.getByRole("link", { name: found.id }).waitFor();
});

test("an execution that starts elsewhere appears by itself", async () => {
  await visit(page, "/executions", "Executions");
  await page.getByRole("table", { name: "Executions" }).waitFor();
  const { id } = await execute({ code: "print('live')" });
  await page.getByRole("link", { name: id }).waitFor();
});

test("a thread shows its history, the difference of two snapshots, and is rolled back", async () => {
  await execute({ code: "open('notes.txt', 'w').write('one\\ntwo\\n')", thread_id: "console-thread" });
  await execute({ code: "open('notes.txt', 'w').write('one\\nTWO\\n'); open('new.txt', 'w').write('n')", thread_id: "console-thread" });
  await visit(page, "/threads", "Threads");
  await page.getByRole("link", { name: "console-thread" }).click();
  const head = (await call("GET", "/v1/threads/console-thread")).body.head;
  await page.getByRole("tab", { name: "Changes" }).click();
  await page.getByLabel("Older snapshot").selectOption(String(head - 1));
  await page.getByRole("button", { name: "changed notes.txt" }).click();
  const diff = page.getByRole("region", { name: "Changes of notes.txt" });
  await diff.waitFor();
  assert.match(await diff.locator(".added").innerText(), /TWO/);
  assert.match(await diff.locator(".removed").innerText(), /two/);
  await page.getByRole("tab", { name: "Files" }).click();
  await page.getByRole("button", { name: "new.txt" }).waitFor();
  await page.locator("input[type=file]").setInputFiles({ name: "uploaded.txt", mimeType: "text/plain", buffer: Buffer.from("from the browser") });
  await page.getByRole("button", { name: "uploaded.txt" }).waitFor();
  const read = await execute({ code: "print(open('uploaded.txt').read())", thread_id: "console-thread" });
  assert.equal(read.result.stdout, "from the browser\n");

  await page.getByRole("tab", { name: "History" }).click();
  const oldest = page.locator(".point").filter({ has: page.locator("strong", { hasText: new RegExp(`^${head - 1}$`) }) });
  await oldest.getByRole("button", { name: "Roll back" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Roll back" }).click();
  await page.getByRole("dialog").waitFor({ state: "detached" });
  const rolled = await execute({ code: "print(open('notes.txt').read(), end='')", thread_id: "console-thread" });
  assert.equal(rolled.result.stdout, "one\ntwo\n");
  await page.getByRole("button", { name: "Fork", exact: true }).first().click();
  await page.getByLabel("Name of the new thread").fill("console-fork");
  await page.getByRole("dialog").getByRole("button", { name: "Fork" }).click();
  await page.getByRole("heading", { level: 1, name: "console-fork" }).waitFor();
});

test("a waiting call of an agent is approved", async () => {
  await call("PATCH", "/v1/admin/defaults", { agent_sandbox: true });
  const params = { name: "execute_code", arguments: { language: "python", code: "print('appr' + 'oved')" } };
  const answer = call("POST", "/mcp", { jsonrpc: "2.0", id: 1, method: "tools/call", params }, { Accept: "application/json, text/event-stream" });
  await visit(page, "/approvals", "Approvals");
  await page.getByRole("link", { name: "Review" }).click();
  await page.getByRole("region", { name: "code" }).getByText("print('appr' + 'oved')").first().waitFor();
  await page.getByRole("button", { name: "Approve this call" }).click();
  const { body } = await answer;
  assert.equal(body.result.structuredContent.stdout, "approved\n");
  await eventually("the count is gone", async () => (await page.getByLabel(/\d waiting/).count()) === 0);
});

test("a viewer sees their team and cannot change anything", async () => {
  await visit(page, "/members", "Members");
  await page.getByRole("button", { name: "New member" }).first().click();
  await page.getByLabel("Name", { exact: true }).fill("vera");
  await page.getByLabel("Role").selectOption("viewer");
  await page.getByLabel("Password", { exact: true }).fill("a long enough password");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await page.getByRole("cell", { name: "vera", exact: true }).waitFor();

  const theirs = await openPage(browser);
  await signIn(theirs, "vera", "a long enough password");
  await theirs.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
  for (const [path, heading, button] of [
    ["/sandboxes", "Sandboxes", /New|Edit|Delete/], ["/keys", "Keys", /New|Edit|Revoke/], ["/volumes", "Volumes", /New|Edit/],
    ["/credentials", "Credentials", /New|Edit/], ["/members", "Members", /New|Edit|Remove/], ["/images", "Images", /Pull|Remove/],
  ]) {
    await visit(theirs, path, heading);
    await theirs.getByRole("region", { name: heading }).waitFor();
    assert.equal(await theirs.getByRole("button", { name: button }).count(), 0, path);
  }
  await visit(theirs, "/playground", "Playground");
  await theirs.getByText("Viewers cannot run code").waitFor();
  assert.equal(await theirs.getByRole("link", { name: "Teams" }).count(), 0);
  await theirs.getByRole("link", { name: "Audit log" }).waitFor();
  // Also by hand, past the page.
  const status = await theirs.evaluate(async () => {
    const session = await (await fetch("/console/api/session")).json();
    const headers = { "X-Cloche-CSRF": session.csrf_token, "Content-Type": "application/json" };
    const answers = await Promise.all([
      fetch("/v1/admin/sandboxes", { method: "POST", headers, body: JSON.stringify({ team: session.team.name, name: "sneaky" }) }),
      fetch("/v1/sandbox/execute?sandbox=default", { method: "POST", headers, body: JSON.stringify({ code: "print(1)" }) }),
      fetch("/v1/threads/console-thread", { method: "DELETE", headers }),
    ]);
    return answers.map((answer) => answer.status);
  });
  assert.deepEqual(status, [403, 403, 403]);
  assertNoComplaints(theirs);
  await theirs.context().close();
});

test("a request without the token against forgery is refused", async () => {
  await visit(page, "/", "Overview");
  const status = await page.evaluate(async () => {
    const body = JSON.stringify({ team: "default", name: "forged" });
    const answer = await fetch("/v1/admin/sandboxes", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    return answer.status;
  });
  assert.equal(status, 403);
});

test("a revoked session is at the sign-in page at once", async () => {
  const other = await openPage(browser);
  await signIn(other, "vera", "a long enough password");
  await other.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
  await visit(page, "/settings", "Settings");
  await page.getByRole("button", { name: "End the session of vera" }).first().click();
  await other.getByText("Your session has ended").waitFor();
  await other.getByRole("button", { name: "Sign in", exact: true }).waitFor();
  await other.context().close();
});

test("the keyboard goes everywhere", async () => {
  await visit(page, "/", "Overview");
  await page.keyboard.press("g");
  await page.keyboard.press("k");
  await page.getByRole("heading", { level: 1, name: "Keys" }).waitFor();
  await page.keyboard.press("/");
  await page.getByRole("combobox", { name: "Page, trace id or thread" }).waitFor();
  await page.keyboard.insertText("volu");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: "Volumes" }).waitFor();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keyboard" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
});

test("every change is in the audit log", async () => {
  await visit(page, "/audit", "Audit log");
  await page.getByRole("cell", { name: "POST /v1/admin/keys", exact: true }).first().waitFor();
  await page.getByRole("cell", { name: "POST /v1/admin/members", exact: true }).first().waitFor();
});

test("nothing of all this broke the policy or threw", () => assertNoComplaints(page));
