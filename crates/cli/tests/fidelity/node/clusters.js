const cluster = require('cluster');
if (cluster.isPrimary) {
  const worker = cluster.fork();
  worker.on('message', (message) => { console.log(message); worker.kill(); });
  worker.on('exit', (code, signal) => console.log('exit', code, signal));
} else {
  const server = require('net').createServer().listen(0, '127.0.0.1', () => {
    process.send([cluster.worker.id, server.address().port > 0]);
  });
}
