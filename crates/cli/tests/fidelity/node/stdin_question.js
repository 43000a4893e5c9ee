// stdin: "Ada\n"
const { createInterface } = require('readline/promises');
const asked = createInterface({ input: process.stdin, output: process.stdout });
asked.question('name? ').then((name) => { console.log(`hello ${name}`); asked.close(); });
