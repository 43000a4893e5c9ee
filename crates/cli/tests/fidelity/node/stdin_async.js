// stdin: "1\n2\n"
(async () => { for await (const part of process.stdin) console.log(part); console.log('end'); })();
