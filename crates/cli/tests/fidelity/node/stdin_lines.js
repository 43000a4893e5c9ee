// stdin: "a\nb\nc"
const lines = require('readline').createInterface({ input: process.stdin });
lines.on('line', (line) => console.log('line', line)).on('close', () => console.log('closed'));
