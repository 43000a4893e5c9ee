Number.isInteger = () => { throw new Error('patched'); };
String.prototype.startsWith = () => { throw new Error('patched'); };
Object.getOwnPropertyDescriptor = () => { throw new Error('patched'); };
Object.isExtensible = () => { throw new Error('patched'); };
globalThis.Number = () => 5;
delete Function.prototype.call;
process.exitCode = 3;
process.stdout.write('1\n');
