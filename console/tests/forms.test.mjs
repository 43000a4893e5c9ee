// Every form with bad input: the server's own words appear at the field that they are about, and the
// focus is there.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { URL_OF_SERVER, assertNoComplaints, call, execute, openBrowser, openPage, signIn, signInAsOperator, visit } from "./support.mjs";

const PASSWORD = "a long enough password";
let browser;
let page;

before(async () => {
  browser = await openBrowser();
  page = await openPage(browser);
  await call("POST", "/v1/admin/sandboxes", { team: "default", name: "walked" });
  await call("POST", "/v1/admin/keys", { team: "default", sandbox: "walked", name: "walker" });
  await call("POST", "/v1/admin/volumes", { team: "default", name: "results", quota_bytes: 2 ** 30 });
  await call("POST", "/v1/admin/credentials", { team: "default", name: "token", kind: "injected", env: "API_TOKEN", value: "v" });
  await call("POST", "/v1/admin/storage", {
    team: "default", name: "bucket", kind: "s3", bucket: "company", endpoint: "http://127.0.0.1:9", allow_private_endpoint: true, check: false,
    credentials: { access_key_id: "id", secret_access_key: "key" },
  });
  await call("POST", "/v1/admin/members", { team: "default", name: "grace", role: "owner", password: PASSWORD });
  await execute({ code: "open('notes.txt', 'w').write('one')", thread_id: "walked-thread" });
  await signInAsOperator(page);
});
after(async () => {
  await browser?.close();
});

const open = (path, heading, button) => async () => {
  await visit(page, path, heading);
  if (button !== undefined) await page.getByRole("button", { name: button, exact: true }).first().click();
  const form = page.getByRole("dialog").locator("form");
  await form.waitFor();
  return form;
};
const add = (button) => (form) => form.getByRole("button", { name: button }).click();
const choose = (label, option) => (form) => form.getByLabel(label, { exact: true }).selectOption(option);

const NAME = ["Name", "Not A Name!"];
const VARIABLES = ["Name of variable 1", "PATH", add("Add variable")];
const LIMITS = [
  "TCP connections at once", "Connections being opened", "New ones a second", "New ones at once", "UDP flows at once", "DNS queries a second",
  "Bytes in a second", "Bytes out a second", "Bytes of one execution",
];
const SANDBOX = [
  ["Image", "no-such-image"], ["Cores", "many"], ["Cores", "100000"], ["Memory in MB", "lots"], ["Memory in MB", "1"], ["Disk in MB", "-1"],
  ["Processes", "0"], ["Keep records for days", "soon"], ["Storage", "no-such-volume"], ["Modules that interpreters import ahead", "not-a-module"],
  ["Rules, one a line", "not a rule:x", choose("Network", "allowlist")], VARIABLES,
];
const CONNECTION = [["Bucket", "a/b"], ["Endpoint", "ftp://example.com"], ["Only below this prefix", "../up"], ["Region", "a b"]];

// The form, how it is opened, its button, what has to be in it, and each bad input with its label.
const FORMS = [
  ["a new sandbox", open("/sandboxes?create=1", "Sandboxes"), "Create", { Name: "walked-too" }, [NAME, ["Name", "walked"], ...SANDBOX]],
  ["a sandbox", open("/sandboxes", "Sandboxes", "Edit walked"), "Save", {}, SANDBOX],
  ["a new key", open("/keys?create=1", "Keys"), "Create", { Name: "walker-too" }, [
    ["Name", ""], ["URL for results", "ftp://example.com"], ["Secret that signs deliveries", "x".repeat(5000)], VARIABLES,
  ]],
  ["a key", open("/keys", "Keys", "Edit walker"), "Save", {}, [["URL for results", "not a URL"], VARIABLES]],
  ["a new connection", open("/storage", "Storage", "New connection"), "Create", { Name: "more", Bucket: "company" }, [
    NAME, ["Name", "bucket", (form) => form.getByLabel("Try it before it is saved").uncheck()], ...CONNECTION, ["Access key id", "only-half"],
    ["Service account key (JSON)", "not JSON", choose("Kind", "gcs")], ["Storage account", "Not An Account", choose("Kind", "azure")],
  ]],
  ["a connection", open("/storage", "Storage", "Edit bucket"), "Save", {}, CONNECTION],
  ["the uses of a connection", openUses("/storage", "Storage", "Only below this path"), "Let it use this", {}, [["Only below this path", "../up"]]],
  ["a new volume", open("/volumes", "Volumes", "New volume"), "Create", { Name: "more-results" }, [
    NAME, ["Name", "results"], ["Most bytes, in GiB", "lots"], ["Most bytes, in GiB", "0"],
  ]],
  ["a volume", open("/volumes", "Volumes", "Edit results"), "Save", {}, [["Most bytes, in GiB", "-1"]]],
  ["the uses of a volume", openUses("/volumes", "Volumes", "Only below this path"), "Let it use this", {}, [["Only below this path", "../up"]]],
  ["a new credential", open("/credentials", "Credentials", "New credential"), "Create", { Name: "more", Value: "a-long-value", "Hosts, one a line": "api.example.com" }, [
    NAME, ["Name", "token"], ["Value", "line\u0001"], ["Hosts, one a line", "not a host!"], ["Hosts, one a line", ""], ["Form", "cookie"],
    ["Only these methods", "F*TCH"], ["Only below these paths", "relative"], ["Variable with the placeholder", "PATH"],
    ["Environment variable", "PATH", choose("Kind", "injected")], ["File in /run/secrets", "a/b", choose("Kind", "injected")],
  ]],
  ["a credential", open("/credentials", "Credentials", "Edit token"), "Save", {}, [["Environment variable", "LD_PRELOAD"]]],
  ["a network policy", open("/network", "Network policies", "Edit the policy of walked"), "Save", {}, [
    ["Rules, one a line", "not a rule:x", choose("Policy", "allowlist")], ["Rules, one a line", "", choose("Policy", "allowlist")],
    ...LIMITS.flatMap((label) => [[label, "many"], [label, "-1"]]),
  ]],
  ["a new team", open("/teams", "Teams", "New team"), "Create", { Name: "walkers" }, [
    NAME, ["Name", "default"], ["Executions at once", "many"], ["Executions at once", "-1"], ["Longest timeout in seconds", "0"],
    ["Credits a month", "-1"], ["Storage in bytes", "x"],
  ]],
  ["a team", open("/teams", "Teams", "Edit default"), "Save", {}, [
    NAME, ["Executions at once", "9999999"], ["Longest timeout in seconds", "never"], ["Credits a month", "x"], ["Storage in bytes", "-5"],
  ]],
  ["a new member", open("/members", "Members", "New member"), "Create", { Name: "hedy", Password: PASSWORD }, [
    NAME, ["Name", "grace"], ["E-mail", "not an address"], ["Password", "short"],
  ]],
  ["a member", open("/members", "Members", "Edit grace"), "Save", {}, [["E-mail", "not an address"], ["Password", "short"]]],
  ["an image", open("/images", "Images", "Pull an image"), "Pull", {}, [["Image", "Not An Image!"]]],
  ["a fork", open("/threads/walked-thread", "walked-thread", "Fork"), "Fork", {}, [["Name of the new thread", "no spaces here"], ["Name of the new thread", "walked-thread"]]],
];

function openUses(path, heading) {
  return open(path, heading, "Uses");
}

/** Types a bad value, submits, and expects the server's complaint at this field and the focus in it. */
async function expectRefusal(form, button, [label, value, prepare]) {
  await form.evaluate((element) => element.querySelectorAll("details").forEach((each) => { each.open = true; }));
  if (prepare !== undefined) await prepare(form);
  const field = form.getByLabel(label, { exact: true });
  await field.fill(value);
  // What the browser itself asks for is left aside: these are the server's words.
  await form.evaluate((element) => { element.noValidate = true; });
  await form.getByRole("button", { name: button, exact: true }).click();
  await form.getByRole("alert").first().waitFor();
  const said = await form.getByRole("alert").allInnerTexts();
  const what = `${label} = ${JSON.stringify(value.slice(0, 40))}: ${said.join("; ")}`;
  assert.equal(said.length, 1, what);
  assert.equal(await field.getAttribute("aria-invalid"), "true", what);
  const described = (await field.getAttribute("aria-describedby"))?.split(" ") ?? [];
  const texts = await Promise.all(described.map((id) => page.locator(`[id="${id}"]`).innerText()));
  assert.ok(texts.includes(said[0]), `${what}: described by ${texts}`);
  assert.ok(await field.isVisible(), what);
  assert.equal(await field.evaluate((element) => element === document.activeElement), true, `the focus is elsewhere: ${what}`);
}

for (const [name, openForm, button, filled, refusals] of FORMS) {
  test(`the form of ${name} shows each complaint at its field`, async () => {
    const failed = [];
    for (const refusal of refusals) {
      const form = await openForm();
      for (const [label, value] of Object.entries(filled)) await form.getByLabel(label, { exact: true }).fill(value);
      await expectRefusal(form, button, refusal).catch((error) => failed.push(`${refusal[0]} = ${refusal[1]}: ${error.message}`));
    }
    assert.deepEqual(failed, []);
  });
}

test("Ctrl and Enter submit a form from a field of several lines", async () => {
  const form = await open("/credentials", "Credentials", "New credential")();
  await form.getByLabel("Name", { exact: true }).fill("by-keyboard");
  await form.getByLabel("Value", { exact: true }).fill("a-long-value");
  await form.getByLabel("Hosts, one a line").fill("api.example.com");
  await page.keyboard.press("Control+Enter");
  await page.getByRole("cell", { name: "by-keyboard", exact: true }).waitFor();
});

test("sign-in and the settings of a member show complaints at their fields", async () => {
  const own = await openPage(browser);
  await signIn(own, "grace", "not the password");
  await own.getByRole("alert").waitFor();
  await signIn(own, "grace", PASSWORD);
  await own.locator("#main h1").waitFor();
  await own.goto(`${URL_OF_SERVER}/console/settings`);
  const card = own.getByRole("region", { name: "Password" });
  for (const [current, next, label] of [["wrong", "another long password", "Current password"], [PASSWORD, "short", "New password"]]) {
    await card.getByLabel("Current password").fill(current);
    await card.getByLabel("New password").fill(next);
    await card.getByRole("button", { name: "Change the password" }).click();
    await card.getByRole("alert").waitFor();
    assert.equal(await card.getByLabel(label).getAttribute("aria-invalid"), "true", await card.getByRole("alert").innerText());
  }
  const factor = own.getByRole("region", { name: "Second factor" });
  await factor.getByRole("button", { name: "Turn it on" }).click();
  await factor.getByLabel("Code", { exact: true }).fill("000000");
  await factor.getByRole("button", { name: "Turn it on" }).click();
  await factor.getByRole("alert").waitFor();
  assert.equal(await factor.getByLabel("Code", { exact: true }).getAttribute("aria-invalid"), "true", await factor.getByRole("alert").innerText());
  assertNoComplaints(own);
  await own.context().close();
});

test("the playground shows complaints at the inputs that they are about", async () => {
  for (const [label, value, prepare] of [
    ["Thread", "no spaces here"], ["Timeout in seconds", "soon"], ["Timeout in seconds", "-1"], ["Name of variable 1", "PATH"],
  ]) {
    await visit(page, "/playground", "Playground");
    await page.evaluate(() => sessionStorage.clear());
    await visit(page, "/playground", "Playground");
    const inputs = page.getByRole("region", { name: "Inputs" });
    await inputs.evaluate((element) => element.querySelectorAll("details").forEach((each) => { each.open = true; }));
    if (label === "Name of variable 1") await inputs.getByRole("button", { name: "Add variable" }).first().click();
    const field = inputs.getByLabel(label, { exact: true });
    await field.fill(value);
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await inputs.getByRole("alert").waitFor();
    assert.equal(await field.getAttribute("aria-invalid"), "true", `${label} = ${value}: ${await inputs.getByRole("alert").innerText()}`);
    assert.equal(prepare, undefined);
  }
});

test("nothing of all this broke the policy or threw", () => {
  assertNoComplaints(page);
});
