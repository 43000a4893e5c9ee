import { createRequire } from 'node:module';
import os, { EOL } from 'node:os';

const require = createRequire(import.meta.url);
console.log(import.meta, require('./data.cjs'), typeof module, EOL === os.EOL);
const more = await import('./more.js');
console.log(more.default, Object.keys(more), process.mainModule);
setTimeout(() => { throw new Error('after the modules'); }, 1);
