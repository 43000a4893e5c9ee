const { Worker } = require('worker_threads');
new Worker('./missing.js').on('error', (error) => console.log(error.code, error.message));
try { Worker(); } catch (error) { console.log(error.message); }
try { new Worker(5); } catch (error) { console.log(error.message); }
try { new Worker('x', null); } catch (error) { console.log(error.message); }
