// Without a package.json, the syntax decides.
import fs from 'node:fs';
import { where } from './beside.mjs';

console.log(import.meta.url, import.meta.filename, import.meta.dirname, typeof require, where, this);
console.log(typeof fs.readFileSync, process.argv, import.meta.resolve('./beside.mjs'));
export const exported = await Promise.resolve(5);
console.log(exported);
