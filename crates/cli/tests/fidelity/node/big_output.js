for (let at = 0; at < 50000; at += 1) process.stdout.write(`${'x'.repeat(99)}\n`);
process.stderr.write('y'.repeat(1000000));
process.exitCode = 3;
