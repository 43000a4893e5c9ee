const { register } = require('module');
register('data:text/javascript,export async function resolve(s,c,n){return n(s,c)}');
import('./beside.mjs').then((m) => console.log(m.a), (e) => console.log(e.message));
