const { AsyncLocalStorage, executionAsyncId, triggerAsyncId } = require('async_hooks');
const store = new AsyncLocalStorage();
console.log(executionAsyncId(), triggerAsyncId());
store.run(1, () => setTimeout(() => console.log(store.getStore()), 1));
