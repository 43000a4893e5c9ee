const test = require('node:test');
const assert = require('node:assert');
process.stdout.write = ((write) => function (text, ...rest) {
  return write.call(this, String(text).replace(/duration_ms:? \S+/g, 'duration_ms ?'), ...rest);
})(process.stdout.write);
test('passes', () => assert.ok(true));
test('fails', { skip: false }, () => assert.strictEqual(1, 2));
test('skipped', { skip: true }, () => {});
