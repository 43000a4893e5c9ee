const { Worker, isMainThread, workerData, parentPort, threadId, SHARE_ENV } = require('worker_threads');
if (isMainThread) {
  console.log(threadId, Worker.name, new Worker('0', { eval: true }).constructor === Worker);
  const worker = new Worker(__filename, { workerData: { a: 1 } });
  worker.on('message', (message) => console.log('message', message));
  worker.on('exit', (code) => {
    console.log('exit', code);
    const failing = new Worker('throw new Error("in a worker")', { eval: true });
    failing.on('error', (error) => console.log('error', error.message));
    failing.on('exit', () => new Worker('console.log(process.execArgv, process.argv, process.env.HOME)', {
      eval: true, argv: ['x'], env: SHARE_ENV,
    }));
    class Mine extends Worker {}
    console.log(new Mine('1', { eval: true }) instanceof Worker);
  });
} else {
  parentPort.postMessage([workerData, process.argv, process.execArgv, Object.keys(require.cache)]);
  process.exit(6);
}
