import { Worker, isMainThread } from 'node:worker_threads';
if (isMainThread) new Worker(new URL(import.meta.url)).on('exit', (code) => console.log('exit', code));
else console.log('in a thread', import.meta.url);
