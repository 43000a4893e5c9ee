// What people do every day beside the first steps: filters of thread and time, inputs of the
// playground, snippets as they are pasted, charts that stay, long histories, approvals with files.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import {
  API_KEY, URL_OF_SERVER, assertNoComplaints, call, eventually, execute, openBrowser, openPage, signInAsOperator, visit, writeProgram,
} from "./support.mjs";

const run = promisify(execFile);
let browser;
let page;

before(async () => {
  browser = await openBrowser();
  page = await openPage(browser, { timezoneId: "America/New_York" });
  await signInAsOperator(page);
});
after(async () => {
  await browser?.close();
});

test("the history is filtered by thread, also from the page of the thread", async () => {
  const wanted = await execute({ code: "print(1)", thread_id: "filtered" });
  const other = await execute({ code: "print(2)", thread_id: "another" });
  await visit(page, "/executions", "Executions");
  const rows = page.getByRole("table", { name: "Executions" });
  await rows.getByRole("link", { name: other.id }).waitFor();
  await page.getByRole("button", { name: "Thread", exact: true }).click();
  await page.getByLabel("Thread id").fill("filtered");
  await page.keyboard.press("Enter");
  await rows.getByRole("link", { name: other.id }).waitFor({ state: "detached" });
  await rows.getByRole("link", { name: wanted.id }).waitFor();
  assert.match(page.url(), /thread_id=filtered/);
  await visit(page, "/threads/another", "another");
  await page.locator(".page-head").getByRole("link", { name: "Executions", exact: true }).click();
  await page.getByRole("button", { name: /Remove the filter thread_id another/ }).waitFor();
  await rows.getByRole("link", { name: other.id }).waitFor();
  await rows.getByRole("link", { name: wanted.id }).waitFor({ state: "detached" });
});

test("the history is filtered between two local times, and the address has them in UTC", async () => {
  const { id } = await execute({ code: "print('timed')" });
  await visit(page, "/executions", "Executions");
  await page.getByRole("link", { name: id }).waitFor();
  await page.getByLabel("Time", { exact: true }).selectOption("exact");
  await page.getByLabel("To", { exact: true }).fill("2020-01-15T12:30");
  await page.getByText("No execution matches").waitFor();
  assert.equal(new URL(page.url()).searchParams.get("until"), "2020-01-15T17:30:00.000Z");
  await page.reload();
  await page.getByText("No execution matches").waitFor();
  assert.equal(await page.getByLabel("To", { exact: true }).inputValue(), "2020-01-15T12:30");
  await page.getByLabel("To", { exact: true }).fill("");
  await page.getByLabel("From", { exact: true }).fill("2020-01-15T12:30");
  await page.getByRole("link", { name: id }).waitFor();
  await page.getByLabel("Time", { exact: true }).selectOption("");
  assert.equal(new URL(page.url()).search, "");
});

test("files that are dropped, standard input and variables reach the program", async () => {
  await visit(page, "/playground", "Playground");
  const files = await page.evaluateHandle(() => {
    const transfer = new DataTransfer();
    transfer.items.add(new File(["a,b\n1,2\n"], "dropped file.csv"));
    return transfer;
  });
  await page.dispatchEvent(".playground", "drop", { dataTransfer: files });
  await page.getByText("dropped file.csv").waitFor();
  await writeProgram(page, [
    "import os, sys", "print(open('dropped file.csv').read(), os.environ['MARK'], sys.stdin.read())", "open('made.csv', 'w').write('x,y\\n3,4\\n')",
  ].join("\n"));
  const inputs = page.getByRole("region", { name: "Inputs" });
  await inputs.locator("summary", { hasText: "Standard input" }).click();
  await page.getByLabel("Standard input").fill("it's \"from\" $stdin");
  await inputs.locator("summary", { hasText: "Variables" }).click();
  await inputs.getByRole("button", { name: "Add variable" }).first().click();
  await page.getByLabel("Name of variable 1").first().fill("MARK");
  await page.getByLabel("Value of variable 1").first().fill("a \\ mark");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.getByRole("log", { name: "Output" }).getByText("a \\ mark it's \"from\" $stdin").waitFor();
  await page.getByRole("region", { name: "Files" }).getByRole("button", { name: "made.csv" }).click();
  await page.getByRole("columnheader", { name: "y", exact: true }).waitFor();
});

// The draft of the test before: a file, quotes, a backslash, a dollar.
for (const [tab, command, ending] of [["curl", "bash", "sh"], ["Python", "python3", "py"], ["JavaScript", "node", "js"], ["JavaScript", "node", "mjs"]]) {
  test(`the snippet for ${tab} runs as a file that ends with .${ending}`, async () => {
    await page.getByRole("button", { name: "As code" }).click();
    await page.getByRole("tab", { name: tab, exact: true }).click();
    await page.getByRole("button", { name: "Copy the snippet" }).click();
    const snippet = await eventually("the snippet is copied", async () => {
      const text = await page.evaluate(() => navigator.clipboard.readText());
      return text.includes({ sh: "curl", py: "urllib", js: "fetch(", mjs: "fetch(" }[ending]) && text;
    });
    await page.keyboard.press("Escape");
    const file = join(await mkdtemp(join(tmpdir(), "snippet-")), `request.${ending}`);
    await writeFile(file, snippet);
    const { stdout } = await run(command, [file], { env: { ...process.env, CLOCHE_API_KEY: API_KEY } });
    const printed = ending === "sh" ? JSON.parse(stdout).stdout : stdout;
    assert.equal(printed, "a,b\n1,2\n a \\ mark it's \"from\" $stdin\n");
  });
}

test("running an execution again brings its key and metadata back", async () => {
  const { id } = await execute({ code: "print('again')", metadata: { order: "o-99" } });
  await visit(page, `/executions/${id}`, id);
  await page.getByRole("link", { name: "Run again" }).click();
  await page.getByRole("textbox", { name: "Program" }).getByText("again").waitFor();
  assert.equal(await page.getByLabel("Value of variable 1").inputValue(), "o-99");
  assert.equal(await page.getByLabel("Key", { exact: true }).locator("option:checked").innerText(), "default");
});

test("text is copied also where the browser has no clipboard for the page", async () => {
  const plain = await openPage(browser);
  await plain.addInitScript(() => Object.defineProperty(navigator, "clipboard", { value: undefined, configurable: true }));
  await signInAsOperator(plain, "/playground");
  await plain.getByRole("button", { name: "As code" }).click();
  await plain.getByRole("button", { name: "Copy the snippet" }).click();
  await plain.getByText("Copied", { exact: true }).waitFor();
  await plain.context().close();
  await eventually("it is there", async () => (await page.evaluate(() => navigator.clipboard.readText())).includes("curl"));
});

test("a chart that somebody zoomed stays when its figures are loaded again", async () => {
  await execute({ code: "print('charted')" });
  const reloads = [];
  page.on("response", (response) => {
    if (response.url().includes("/console/api/overview")) reloads.push(response);
  });
  await visit(page, "/?range=15m", "Overview");
  const plot = page.getByRole("region", { name: /^Runs per/ }).locator(".u-over");
  const box = await plot.boundingBox();
  await page.mouse.move(box.x + box.width * 0.3, box.y + 40);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.6, box.y + 40, { steps: 4 });
  await page.mouse.up();
  const all = page.getByRole("button", { name: "Show all of runs" });
  await all.waitFor();
  await plot.evaluate((element) => { element.dataset.same = "yes"; });
  const before = reloads.length;
  await eventually("the figures are loaded again", async () => reloads.length > before + 1);
  assert.equal(await plot.getAttribute("data-same"), "yes");
  await all.click();
  await all.waitFor({ state: "detached" });
});

test("a thread with a long history shows its first snapshots too", async () => {
  for (let at = 0; at < 203; at++) {
    const answer = await fetch(`${URL_OF_SERVER}/v1/threads/long/files/note.txt`, {
      method: "PUT", body: `version ${at}`, headers: { Authorization: `Bearer ${API_KEY}`, "Content-Type": "application/octet-stream" },
    });
    assert.ok(answer.ok, `${answer.status} ${await answer.text()}`);
  }
  await visit(page, "/threads/long", "long");
  const first = page.locator(".point").filter({ has: page.locator("strong", { hasText: /^1$/ }) });
  await page.locator(".point").first().waitFor();
  assert.equal(await first.count(), 0);
  await page.getByRole("button", { name: "Show older snapshots" }).click();
  await first.waitFor();
  await page.getByRole("tab", { name: "Changes" }).click();
  await page.getByLabel("Older snapshot").selectOption("1");
  await page.getByRole("button", { name: "changed note.txt" }).click();
  const diff = page.getByRole("region", { name: "Changes of note.txt" });
  await diff.locator(".removed", { hasText: "version 0" }).waitFor();
  await diff.locator(".added", { hasText: "version 202" }).waitFor();
});

test("a snapshot that a run makes elsewhere appears by itself", async () => {
  await execute({ code: "open('a', 'w').write('1')", thread_id: "watched" });
  await visit(page, "/threads/watched", "watched");
  await page.locator(".point").first().waitFor();
  const { id } = await execute({ code: "open('b', 'w').write('2')", thread_id: "watched" });
  await page.locator(".point").getByRole("link", { name: id }).waitFor();
});

test("an approval shows the files of the call as text, and that somebody else has answered", async () => {
  await call("PATCH", "/v1/admin/defaults", { agent_sandbox: true });
  const files = [
    { name: "rows.csv", content_base64: Buffer.from("region,amount\nnorth,3\n").toString("base64") },
    { name: "hidden.txt", content: "left\u202eright" }, { name: "raw.bin", content_base64: "AAEC/w==" },
  ];
  const params = { name: "execute_code", arguments: { language: "python", code: "print(open('rows.csv').read())", files } };
  const answer = call("POST", "/mcp", { jsonrpc: "2.0", id: 1, method: "tools/call", params }, { Accept: "application/json, text/event-stream" });
  await visit(page, "/approvals", "Approvals");
  await page.getByRole("link", { name: "Review" }).click();
  await page.getByRole("region", { name: "rows.csv" }).getByText("north,3").waitFor();
  assert.ok((await page.getByRole("region", { name: "hidden.txt" }).innerText()).includes("left\\u{202e}right"));
  assert.ok((await page.getByRole("region", { name: "raw.bin" }).innerText()).includes("AAEC/w=="));
  const id = new URL(page.url()).pathname.split("/").pop();
  await call("POST", `/v1/admin/approvals/${id}/approve`, {});
  assert.match((await answer).body.result.structuredContent.stdout, /north,3/);
  await page.getByRole("button", { name: "Approve this call" }).waitFor({ state: "detached" });
});

test("nothing of all this broke the policy or threw", () => assertNoComplaints(page));
