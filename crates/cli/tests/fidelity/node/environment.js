// env: ZED=last
// env: ALPHA=first one
// env: TZ=America/New_York
console.log(process.env, Object.keys(process.env), process.env.NODE_OPTIONS);
console.log(require('child_process').execFileSync('env').toString());
console.log(new Date(0).toString(), Intl.DateTimeFormat().resolvedOptions());
delete process.env.ZED;
process.env.ADDED = 1;
console.log(require('child_process').execFileSync('env').toString());
