// stdin: "never read"
console.log('not read');
