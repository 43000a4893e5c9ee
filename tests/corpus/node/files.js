const fs = require("node:fs/promises");
const path = require("node:path");
(async () => {
  await fs.mkdir("out/deep", { recursive: true });
  await fs.writeFile(path.join("out", "a.txt"), "alpha\nbeta\n");
  console.log((await fs.readdir("out")).sort(), (await fs.readFile("out/a.txt", "utf8")).split("\n"));
  await fs.rm("out", { recursive: true });
  await fs.readFile("missing.txt").catch((error) => console.log(error.code, error.message));
})();
