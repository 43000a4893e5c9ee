process.on('exit', (code) => process.stdout.write(`exit ${code}\n`));
process.listenerCount = () => 0;
process.stdout.write('1\n');
