// each: throw new Error('at the top')
// each: await Promise.reject(new Error('awaited'))
// each: await new Promise(() => {})
// each: await import('./missing.mjs')
// each: await import('missing-package')
// each: console.log(new Error('shown').stack)
// each: process.exit(3)
// each: process.exitCode = 4
// each: process.on('exit', (c) => console.log('exit', c))
// each: setTimeout(() => console.log('later'), 2)
// each: require('fs')
// each: undefinedName
// each: import.meta.x.y
// each: await import('./bad.mjs')
// each: Promise.reject(1)
EACH;
