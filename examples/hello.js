// A first program: says where it runs, and what else runs there.
const { readdirSync } = require("node:fs");

const processes = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
console.log(`Hello from Node ${process.version}, process ${process.pid} of this sandbox.`);
console.log(`It sees ${processes.length} processes, its own among them.`);
