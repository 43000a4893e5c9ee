console.log(Object.getOwnPropertyNames(Error), Error.stackTraceLimit, Error.prepareStackTrace);
console.log(Object.getOwnPropertyNames(Object.prototype).length, Object.getOwnPropertyNames(Array.prototype).length);
console.log(Reflect.ownKeys(process.stdout).length > 0, require('module').builtinModules.length);
