const { execSync, spawn } = require("node:child_process");
console.log(execSync("echo from the shell", { encoding: "utf8" }));
const child = spawn("sh", ["-c", "cat; exit 3"]);
child.stdout.on("data", (data) => process.stdout.write(data));
child.on("close", (code) => console.log("code", code));
child.stdin.end("piped\n");
