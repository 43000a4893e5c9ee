setTimeout(() => {
  console.log('timeout');
  setImmediate(() => console.log('immediate'));
  require('timers/promises').setTimeout(1).then(() => console.log('promised'));
}, 1);
process.nextTick(() => console.log('tick'));
Promise.resolve().then(() => console.log('micro'));
queueMicrotask(() => console.log('micro too'));
console.log('main');
const { setTimeout: same } = require('timers');
console.log(same === setTimeout, typeof setTimeout(() => {}, 0)[Symbol.toPrimitive]());
