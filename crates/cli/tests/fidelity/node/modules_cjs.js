const beside = require('./beside');
console.log(beside, require('./data.json'), module.children.map((child) => child.id));
console.log(Object.keys(require.cache), require('./beside') === beside, require.resolve('./beside'));
console.log(require('./beside').stack());
import('./module.mjs').then((module) => console.log(module, module.default()));
delete require.cache[require.resolve('./beside')];
console.log(require('./beside') === beside);
