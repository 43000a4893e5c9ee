// An image is pulled with visible progress, and its labels are text.
import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { assertNoComplaints, openBrowser, openPage, signInAsOperator, visit } from "./support.mjs";

let browser;
before(async () => {
  browser = await openBrowser();
});
after(async () => {
  await browser?.close();
});

test("an image is pulled, with its progress, and shown", async () => {
  const reference = process.env.CLOCHE_IMAGE;
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
  // The registry holds the transfer back until the progress was seen.
  await dialog.getByText("downloading").waitFor();
  await dialog.getByText(/ of .* · layer/).waitFor();
  await dialog.getByRole("progressbar").waitFor();
  await writeFile(process.env.CLOCHE_SEEN, "seen");
  await page.getByRole("dialog", { name: "The image is here" }).waitFor();
  await page.getByRole("button", { name: "Done" }).click();
  await page.getByRole("button", { name: reference }).click();
  await page.getByText("data-hacked").first().waitFor();
  assert.equal(await page.evaluate(() => document.querySelectorAll("[data-hacked]").length + (window.hacked ?? 0)), 0);
  assertNoComplaints(page);
});
