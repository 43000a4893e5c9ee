// differs: /proc/self/environ
console.log(require('fs').readFileSync('/proc/self/environ', 'utf8').split('\0'));
