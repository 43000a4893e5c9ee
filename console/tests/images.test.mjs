// An image is pulled with visible progress, and its labels are text.
import assert from "node:assert/strict";
import { connect, createServer } from "node:net";
import { after, before, test } from "node:test";
import { assertNoComplaints, openBrowser, openPage, signInAsOperator, visit } from "./support.mjs";

let browser;
before(async () => {
  browser = await openBrowser();
});
after(async () => {
  await browser?.close();
});

/** Passes connections on to the registry, and holds replies after so many bytes until `release`. */
async function startProxy(target, limit) {
  const [host, port] = target.split(":");
  let release;
  const released = new Promise((resolve) => {
    release = resolve;
  });
  let passed = 0;
  const server = createServer((client) => {
    const upstream = connect(Number(port), host);
    client.pipe(upstream);
    for (const socket of [client, upstream]) socket.on("error", () => { client.destroy(); upstream.destroy(); });
    upstream.on("end", () => client.end());
    upstream.on("data", async (bytes) => {
      passed += bytes.length;
      if (passed > limit) {
        upstream.pause();
        await released;
        upstream.resume();
      }
      client.write(bytes);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  // An open server would keep this process alive after a failure.
  server.unref();
  return { address: `127.0.0.1:${server.address().port}`, release };
}

test("an image is pulled, with its progress, and shown", async () => {
  const proxy = await startProxy(process.env.CLOCHE_REGISTRY, 2_000_000);
  const reference = `${proxy.address}/tool:1`;
  const page = await openPage(browser);
  await signInAsOperator(page);
  await visit(page, "/images", "Images");
  await page.getByRole("button", { name: "Pull an image" }).first().click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Image", { exact: true }).fill("Not An Image");
  await dialog.getByRole("button", { name: "Pull", exact: true }).click();
  await dialog.getByRole("alert").waitFor();
  assert.equal(await dialog.getByLabel("Image", { exact: true }).getAttribute("aria-invalid"), "true");
  await dialog.getByLabel("Image", { exact: true }).fill(reference);
  await dialog.getByText("Registry account").click();
  await dialog.getByLabel("Plain HTTP").check();
  await dialog.getByRole("button", { name: "Pull", exact: true }).click();
  // The transfer is held back until the progress was seen.
  await dialog.getByText("downloading").waitFor();
  await dialog.getByText(/ of .* · layer/).waitFor();
  await dialog.getByRole("progressbar").waitFor();
  proxy.release();
  await page.getByRole("dialog", { name: "The image is here" }).waitFor();
  await page.getByRole("button", { name: "Done" }).click();
  await page.getByRole("button", { name: reference, exact: true }).click();
  await page.getByText("data-hacked").first().waitFor();
  assert.equal(await page.evaluate(() => document.querySelectorAll("[data-hacked]").length + (window.hacked ?? 0)), 0);
  assertNoComplaints(page);
});
