console.log(require('fs').readdirSync('/proc/self/fd'));
console.log(require('fs').openSync('main.js'));
