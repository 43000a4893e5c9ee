// A plot of a program of the default image is shown beside its output.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { join } from "node:path";
import { assertNoComplaints, openBrowser, openPage, signInAsOperator, visit, writeProgram } from "./support.mjs";

let browser;
before(async () => {
  browser = await openBrowser();
});
after(async () => {
  await browser?.close();
});

test("a matplotlib plot is visible in the playground", async () => {
  const page = await openPage(browser);
  await signInAsOperator(page);
  await visit(page, "/playground", "Playground");
  await writeProgram(page, [
    "import matplotlib", "matplotlib.use('Agg')", "import matplotlib.pyplot as plt", "import numpy as np", "",
    "x = np.linspace(0, 10, 200)", "plt.figure(figsize=(6, 3.2))", "plt.plot(x, np.sin(x), label='sin')", "plt.plot(x, np.cos(x), label='cos')",
    "plt.legend()", "plt.savefig('plot.png', dpi=120)", "print('saved')",
  ].join("\n"));
  await page.getByRole("button", { name: "Run", exact: true }).click();
  const plot = page.getByRole("img", { name: "plot.png" });
  await plot.waitFor();
  const size = await plot.evaluate(async (image) => {
    await image.decode();
    return [image.naturalWidth, image.naturalHeight];
  });
  assert.deepEqual(size, [720, 384]);
  if (process.env.CLOCHE_SCREENSHOTS !== undefined) {
    await page.screenshot({ path: join(process.env.CLOCHE_SCREENSHOTS, "playground-plot-1440.png") });
    await page.setViewportSize({ width: 390, height: 844 });
    await page.screenshot({ path: join(process.env.CLOCHE_SCREENSHOTS, "playground-plot-390.png"), fullPage: true });
  }
  assertNoComplaints(page);
});
