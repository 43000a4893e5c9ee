// The same walls from another language, by what its runtime offers.
const fs = require("fs");
const { spawnSync } = require("child_process");
const seen = [], broken = [];

function refused(what, attempt) {
  try {
    broken.push(`${what}: worked (${String(attempt()).slice(0, 60)})`);
  } catch (error) {
    (/^(EACCES|EPERM|ENOENT|EROFS)$/.test(error.code) ? seen : broken).push(`${what}: ${error.code}`);
  }
}

refused("the host's secret", () => fs.readFileSync(process.env.PROBE_SECRET));
refused("pid 1's memory", () => fs.openSync("/proc/1/mem"));
refused("a file in /etc", () => fs.writeFileSync("/etc/made", "x"));
refused("setuid", () => process.setuid(0));
refused("a signal to the host", () => { try { process.kill(Number(process.env.PROBE_HOST_PID), 0); }
  catch (error) { error.code = error.code === "ESRCH" ? "ENOENT" : error.code; throw error; } });
const user = spawnSync("unshare", ["--user", "true"], { encoding: "utf8" });
(user.status === 0 ? broken : seen).push(`unshare: ${user.status}`);
const status = fs.readFileSync("/proc/self/status", "utf8");
(/^CapEff:\t0+$/m.test(status) && /^Seccomp:\t2$/m.test(status) ? seen : broken).push("status");
console.log(broken.length ? `BROKE ${broken.join("; ")}` : `HELD ${seen.join("; ")}`);
