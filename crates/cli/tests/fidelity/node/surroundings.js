const fs = require('fs');
for (const root of ['.', '/tmp', '/run', '/dev', '/home', '/']) console.log(root, fs.readdirSync(root));
const status = fs.readFileSync('/proc/self/status', 'utf8').split('\n');
const wanted = /^(Name|Umask|Uid|Gid|Groups|SigBlk|SigIgn|SigCgt|Cap|NoNewPrivs|Seccomp:|NS|Threads)/;
console.log(status.filter((line) => wanted.test(line)));
console.log(fs.statSync('main.js').mode, fs.statSync('.').mode, fs.readFileSync('/proc/self/limits', 'utf8'));
