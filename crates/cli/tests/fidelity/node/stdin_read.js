// stdin: "first\nsecond ä\nlast"
console.log(process.stdin.isTTY, process.stdout.isTTY, process.stderr.isTTY, process.stdin.fd);
let all = '';
process.stdin.setEncoding('utf8').on('data', (part) => { all += part; })
  .on('end', () => console.log(JSON.stringify(all)));
