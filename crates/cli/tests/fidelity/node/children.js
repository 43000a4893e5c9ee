const { exec, execFileSync, execSync, fork, spawn, spawnSync } = require('child_process');
if (process.argv[2] === 'child') {
  process.on('message', (message) => {
    process.send([message, process.argv.slice(2), process.execArgv, process.connected]);
    process.disconnect();
  });
} else {
  console.log(execSync('echo $0; pwd; ls -a').toString(), execFileSync('node', ['-p', '1+1']).toString());
  console.log(spawnSync('sh', ['-c', 'exit 3']).status, spawnSync('sh', ['-c', 'kill -9 $$']).signal);
  console.log(execFileSync(process.execPath, ['-e', 'console.log(process.env.NODE_OPTIONS, process.execArgv)']).toString());
  exec('exit 4', (error) => {
    console.log(error.code, error.message);
    const child = fork(__filename, ['child']);
    child.on('message', (message) => console.log('from the child', message));
    child.on('exit', (code) => {
      console.log('child exit', code);
      spawn('cat', { stdio: ['pipe', 'inherit', 'inherit'] }).stdin.end('through cat\n');
    });
    child.send({ hello: 1 });
  });
}
