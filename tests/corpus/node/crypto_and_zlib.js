const crypto = require("node:crypto");
const zlib = require("node:zlib");
console.log(crypto.createHash("sha256").update("abc").digest("hex"));
console.log(crypto.randomUUID().length, Buffer.from("héllo").toString("base64"));
console.log(zlib.gunzipSync(zlib.gzipSync("x".repeat(1000))).length, new URL("?a=1", "http://h/p").href);
process.exit(2);
