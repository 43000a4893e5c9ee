// stdin: "all at once\n"
console.log(JSON.stringify(require('fs').readFileSync(0, 'utf8')));
console.log(JSON.stringify(require('fs').readFileSync('/dev/stdin', 'utf8')));
