setTimeout(() => console.log('timeout'), 1);
setImmediate(() => console.log('immediate'));
process.nextTick(() => console.log('tick'));
Promise.resolve().then(() => console.log('micro'));
queueMicrotask(() => console.log('micro too'));
console.log('main');
require('timers/promises').setTimeout(20).then(() => console.log('promised'));
const { setTimeout: same } = require('timers');
console.log(same === setTimeout, typeof setTimeout(() => {}, 0)[Symbol.toPrimitive]());
