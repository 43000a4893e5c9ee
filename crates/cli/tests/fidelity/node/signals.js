process.on('SIGTERM', (name, number) => {
  console.log(name, number, process.listenerCount('SIGTERM'));
  process.removeAllListeners('SIGTERM');
  process.once('SIGUSR2', () => {
    console.log('twice');
    process.kill(process.pid, 'SIGTERM');
    setTimeout(() => console.log('never'), 20_000);
  });
  process.kill(process.pid, 'SIGUSR2');
});
process.kill(process.pid, 'SIGTERM');
setTimeout(() => {}, 20_000);
