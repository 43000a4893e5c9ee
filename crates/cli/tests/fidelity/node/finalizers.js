new FinalizationRegistry(() => console.log('finalized')).register({}, 1);
let weak = new WeakRef({});
console.log(typeof weak.deref());
