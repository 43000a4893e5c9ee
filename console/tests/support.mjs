// A browser for the tests: Debian's Chromium, driven by Playwright, against a real server.
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

export const URL_OF_SERVER = need("CLOCHE_URL");
export const ADMIN_TOKEN = need("CLOCHE_ADMIN_TOKEN");
export const API_KEY = need("CLOCHE_API_KEY");
// Long, because the tests run beside many others.
const PATIENCE = Number(process.env.CLOCHE_PATIENCE ?? 90) * 1000;

function need(name) {
  const value = process.env[name];
  assert.ok(value, `${name} is not set: a test of crates/cli/tests/serve starts this with a server`);
  return value;
}

export async function openBrowser() {
  return chromium.launch({
    executablePath: process.env.CLOCHE_CHROMIUM ?? "/usr/bin/chromium",
    // Root cannot use Chromium's own sandbox.
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--force-color-profile=srgb"],
    timeout: PATIENCE,
  });
}

/**
 * A page in a session of its own. `page.complaints` gathers what must not happen: violations of the
 * policy, errors of scripts, dialogs that only an injected script would open, requests elsewhere.
 */
export async function openPage(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  context.setDefaultTimeout(PATIENCE);
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: URL_OF_SERVER });
  const page = await context.newPage();
  page.complaints = [];
  const complain = (text) => page.complaints.push(text);
  await page.exposeBinding("reportViolation", (_source, text) => complain(`policy: ${text}`));
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      window.reportViolation(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber} ${event.sample}`);
    });
  });
  page.on("pageerror", (error) => complain(`error: ${error.stack ?? error.message}`));
  page.on("dialog", (dialog) => {
    complain(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("console", (message) => {
    if (/Content Security Policy|Trusted Type/i.test(message.text())) complain(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(URL_OF_SERVER) && !/^(blob|data):/.test(url)) complain(`request elsewhere: ${url}`);
  });
  return page;
}

export async function signInAsOperator(page, path = "/") {
  await page.goto(`${URL_OF_SERVER}/console${path}`);
  await page.getByRole("tab", { name: "Admin token" }).click();
  await page.getByLabel("Admin token", { exact: true }).fill(ADMIN_TOKEN);
  await page.getByRole("button", { name: "Sign in", exact: true }).click();
  await page.locator("#main h1").waitFor();
}

export async function signIn(page, name, password) {
  await page.goto(`${URL_OF_SERVER}/console/`);
  await page.getByLabel("Name", { exact: true }).fill(name);
  await page.getByLabel("Password", { exact: true }).fill(password);
  await page.getByRole("button", { name: "Sign in", exact: true }).click();
}

/** Goes to a page of the console and waits for its heading. */
export async function visit(page, path, heading) {
  await page.goto(`${URL_OF_SERVER}/console${path}`);
  await page.getByRole("heading", { level: 1, name: heading }).waitFor();
}

/** A request with the API key, or with the admin token for `/v1/admin`. */
export async function call(method, path, body, headers = {}) {
  const token = path.startsWith("/v1/admin") ? ADMIN_TOKEN : API_KEY;
  const response = await fetch(URL_OF_SERVER + path, {
    method,
    headers: { Authorization: `Bearer ${token}`, ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
  return { body: text === "" ? null : JSON.parse(text), headers: response.headers };
}

/** Runs a program. Returns the trace id and the result. */
export async function execute(body) {
  const answer = await call("POST", "/v1/sandbox/execute", body);
  return { id: answer.headers.get("x-trace-id"), result: answer.body };
}

/** Types a program into the editor of the playground. */
export async function writeProgram(page, code) {
  const editor = page.getByRole("textbox", { name: "Program" });
  await editor.click();
  await page.keyboard.press("Control+a");
  await page.keyboard.press("Delete");
  await page.keyboard.insertText(code);
}

export function assertNoComplaints(page) {
  assert.deepEqual(page.complaints, []);
}

/** Waits until a condition holds. */
export async function eventually(what, condition) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const value = await condition();
    if (value) return value;
    assert.ok(Date.now() < end, `did not happen: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
