console.log(Object.getOwnPropertyNames(process).sort().join());
console.log(process.emit === require('events').prototype.emit, process.on.name, process.emit.name);
console.log(process.config.variables.napi_build_version, process.release.name, process.features);
console.log(process.allowedNodeEnvironmentFlags.size, process.exitCode, process.domain);
console.log(process.getuid(), process.getgid(), process.getgroups(), process.report.directory);
console.log(process.eventNames(), process.listenerCount('exit'), process.getMaxListeners());
console.log(process.constrainedMemory?.() > 0, process.noDeprecation, process.throwDeprecation);
