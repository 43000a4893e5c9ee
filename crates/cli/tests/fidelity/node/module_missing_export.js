import { nothing } from './beside.mjs';
console.log(nothing);
