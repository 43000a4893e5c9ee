// Every page in both themes and on a phone: axe finds nothing serious, nothing overflows, and the
// page does not jump. With CLOCHE_SCREENSHOTS set to a directory, pictures are written there.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { assertNoComplaints, call, execute, openBrowser, openPage, signInAsOperator, URL_OF_SERVER, visit } from "./support.mjs";

const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const pictures = process.env.CLOCHE_SCREENSHOTS;
// The promise is a second on a quiet machine; the tests run beside many others.
const MOST_UNTIL_USABLE = Number(process.env.CLOCHE_USABLE_MS ?? 10_000);
let browser;
let wide;
let phone;
let shown;

before(async () => {
  browser = await openBrowser();
  await fillServer();
  wide = await openPage(browser);
  phone = await openPage(browser, { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
  await signInAsOperator(wide);
  await signInAsOperator(phone);
});
after(async () => {
  await browser?.close();
});

/** Things to see on every page. */
async function fillServer() {
  await call("POST", "/v1/admin/sandboxes", { team: "default", name: "data-analysis", memory_mb: 512, network: "allowlist", network_allow: ["api.example.com", "*.example.org:443"] });
  await call("POST", "/v1/admin/volumes", { team: "default", name: "results", quota_bytes: 2 ** 30 });
  await call("POST", "/v1/admin/keys", { team: "default", sandbox: "data-analysis", name: "reporting-agent" });
  await call("POST", "/v1/admin/members", { team: "default", name: "ada", role: "owner", password: "a long enough password" });
  for (let at = 0; at < 12; at++) {
    await execute({ code: `print(${at} ** 2)`, metadata: { order: `o-${at}`, agent: "order-processor" } });
  }
  await execute({ code: "import sys\nprint('\\x1b[32mchecked\\x1b[0m 12 rows')\nprint('\\x1b[31mrow 7 has no date\\x1b[0m', file=sys.stderr)\nsys.exit(3)", metadata: { order: "o-7" } });
  await execute({ code: "console.log([1, 2, 3].map((n) => n * n))", language: "node" });
  await execute({ code: "open('notes.md', 'w').write('# Notes\\n\\n- one\\n- two\\n')", thread_id: "quarterly-report" });
  shown = await execute({
    code: [
      "import csv, json", "", "# Sums the amounts of each region.", "rows = [('north', 3), ('south', 8), ('west', 5)]",
      "with open('regions.csv', 'w') as file:", "    csv.writer(file).writerows([('region', 'amount'), *rows])",
      "open('notes.md', 'w').write('# Notes\\n\\n- one\\n- two, checked\\n')",
      "json.dump({'total': sum(amount for _, amount in rows)}, open('total.json', 'w'))", "print('total', sum(amount for _, amount in rows))",
    ].join("\n"),
    thread_id: "quarterly-report", metadata: { user_id: "usr_42", agent: "report-writer" },
  });
  if (pictures !== undefined) await fillCharts();
}

/** Some traffic for the pictures of charts. */
async function fillCharts() {
  const end = Date.now() + 90_000;
  for (let at = 0; Date.now() < end; at++) {
    const code = at % 9 === 8 ? "raise SystemExit(1)" : `import time\ntime.sleep(${(at % 7) / 40})\nprint(${at})`;
    await execute({ code, metadata: { order: `o-${100 + at}` } });
    await new Promise((resolve) => setTimeout(resolve, 300 + 900 * Math.abs(Math.sin(at / 12))));
  }
}

const PAGES = () => [
  ["overview", "/?range=15m", "Overview"], ["executions", "/executions", "Executions"], ["execution", `/executions/${shown.id}`, shown.id],
  ["playground", "/playground", "Playground"], ["threads", "/threads", "Threads"], ["thread", "/threads/quarterly-report", "quarterly-report"],
  ["thread-changes", "/threads/quarterly-report?view=diff", "quarterly-report"], ["thread-files", "/threads/quarterly-report?view=files", "quarterly-report"],
  ["approvals", "/approvals", "Approvals"], ["responses", "/responses", "Agent responses"], ["sandboxes", "/sandboxes", "Sandboxes"],
  ["sandbox-form", "/sandboxes?create=1", "Sandboxes"], ["keys", "/keys", "Keys"], ["images", "/images", "Images"], ["network", "/network", "Network policies"],
  ["storage", "/storage", "Storage"], ["volumes", "/volumes", "Volumes"], ["credentials", "/credentials", "Credentials"], ["nodes", "/nodes", "Nodes"], ["teams", "/teams", "Teams"],
  ["members", "/members", "Members"], ["usage", "/usage", "Usage"], ["audit", "/audit", "Audit log"], ["settings", "/settings", "Settings"], ["api-docs", "/api-docs", "API"],
];
// Small enough for the repository, and enough to see what the console is like.
const KEPT = ["overview", "executions", "execution", "playground", "thread", "thread-changes", "sandbox-form", "network", "usage", "audit"];

async function settle(page) {
  await page.waitForFunction(() => document.querySelector(".loading") === null && document.querySelector("[aria-busy=true]") === null);
  await page.waitForFunction(() => [...document.querySelectorAll(".editor-host")].every((host) => host.shadowRoot?.querySelector(".cm-content")));
}

async function findSerious(page) {
  // The policy forbids inline scripts; Playwright evaluates past it.
  await page.evaluate(axe);
  const result = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }));
  return result.violations
    .filter((each) => each.impact === "serious" || each.impact === "critical")
    .map((each) => `${each.id}: ${each.nodes.map((node) => `${node.target.join(" ")} ${node.failureSummary?.split("\n")[1] ?? ""}`).slice(0, 4).join("; ")}`);
}

async function look(page, name, path, heading, width) {
  await visit(page, path, heading);
  await settle(page);
  assert.deepEqual(await findSerious(page), [], `${name} at ${width}`);
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(overflow <= 0, `${name} is ${overflow} pixels too wide at ${width}`);
  if (pictures !== undefined && KEPT.includes(name)) {
    await page.screenshot({ path: join(pictures, `${name}-${width}.png`) });
  }
}

test("every page is accessible and fits at 1440 pixels", async () => {
  for (const [name, path, heading] of PAGES()) await look(wide, name, path, heading, 1440);
});

test("every page is accessible and fits at 390 pixels", async () => {
  for (const [name, path, heading] of PAGES()) await look(phone, name, path, heading, 390);
});

test("the dark theme is accessible at both widths", async () => {
  for (const page of [wide, phone]) {
    await visit(page, "/settings", "Settings");
    await page.getByRole("button", { name: "Use dark colours" }).click();
    for (const [name, path, heading] of PAGES()) {
      await visit(page, path, heading);
      await settle(page);
      assert.deepEqual(await findSerious(page), [], `${name}, dark`);
      if (page === wide && pictures !== undefined && (name === "overview" || name === "execution")) {
        await page.screenshot({ path: join(pictures, `${name}-dark-1440.png`) });
      }
    }
    await visit(page, "/settings", "Settings");
    await page.getByRole("button", { name: "Use light colours" }).click();
  }
});

test("the sign-in page is accessible", async () => {
  const page = await openPage(browser);
  await page.goto(`${URL_OF_SERVER}/console/`);
  await page.getByRole("button", { name: "Sign in", exact: true }).waitFor();
  assert.deepEqual(await findSerious(page), []);
  if (pictures !== undefined) await page.screenshot({ path: join(pictures, "sign-in-1440.png") });
  await page.context().close();
});

test("the menu of a phone opens and leads on", async () => {
  await visit(phone, "/", "Overview");
  await phone.getByRole("button", { name: "Menu" }).click();
  await phone.getByRole("link", { name: "Executions" }).click();
  await phone.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
});

test("the first load is small, compressed and does not jump", async () => {
  const page = await openPage(browser);
  await signInAsOperator(page);
  await page.addInitScript(() => {
    window.shift = 0;
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
    }).observe({ type: "layout-shift", buffered: true });
    // The page can be used when its heading is there: it is rendered with its handlers.
    new MutationObserver((_changes, observer) => {
      if (document.querySelector("#main h1") === null) return;
      window.usableAfter = performance.now();
      observer.disconnect();
    }).observe(document, { childList: true, subtree: true });
  });
  await visit(page, "/", "Overview");
  await settle(page);
  const loaded = await page.evaluate(() => performance.getEntriesByType("resource")
    .filter((entry) => entry.name.includes("/console/assets/")).map((entry) => ({ name: entry.name, sent: entry.encodedBodySize, whole: entry.decodedBodySize })));
  const total = loaded.reduce((sum, entry) => sum + entry.sent, 0);
  assert.ok(total > 10_000 && total < 200_000, `${total} bytes: ${JSON.stringify(loaded)}`);
  assert.ok(loaded.every((entry) => entry.sent < entry.whole || entry.whole < 300), JSON.stringify(loaded));
  const shift = await page.evaluate(() => window.shift);
  assert.ok(shift < 0.1, `the page jumped by ${shift}`);
  const usableAfter = await page.evaluate(() => window.usableAfter);
  assert.ok(usableAfter < MOST_UNTIL_USABLE, `usable after ${usableAfter} ms`);
  console.log(`first load: ${total} bytes in ${loaded.length} files, layout shift ${shift.toFixed(4)}, usable after ${Math.round(usableAfter)} ms`);
  await page.context().close();
});

test("nothing of all this broke the policy or threw", () => {
  assertNoComplaints(wide);
  assertNoComplaints(phone);
});
