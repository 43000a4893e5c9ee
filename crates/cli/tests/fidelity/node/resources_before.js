const before = [process.getActiveResourcesInfo(), process._getActiveHandles().length, process._getActiveRequests().length];
console.log(before);
