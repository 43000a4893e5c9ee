const fs = require('fs');
for (let fd = 0; fd < 3; fd += 1) {
  const flags = fs.readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8').match(/flags:\s*(\d+)/)[1];
  fs.writeSync(2, `${fd} ${flags}\n`);
}
const kinds = fs.readdirSync('/proc/self/fd').map((fd) => {
  try { return fs.readlinkSync(`/proc/self/fd/${fd}`).replace(/\d+/g, 'N'); } catch { return '-'; }
});
console.log(kinds.sort());
