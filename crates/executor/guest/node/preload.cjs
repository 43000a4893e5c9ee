'use strict';
// Runs in: the guest of a cell, before its program and when that has ended.
//
// Makes a Node.js interpreter wait for its job at the last moment of its own start-up. Node
// requires this file before it looks at the main file. After it, Node goes on as `node main.js`
// does. The program must not see anything of it.
//
// The file stays in the cell: threads of the program inherit the options of the process and require
// it again. It does nothing for them. docs/GUEST-PROTOCOL.md has the byte layout of a job.
// The options of an image come after ours.
if (`${process.env.NODE_OPTIONS} `.startsWith(`--require=${__filename} `)) {
  const fs = require('fs');
  const Module = require('module');
  // build.rs replaces the next line by the table of crates/jail/src/protocol/constants.rs.
  const protocol = require('./protocol.cjs');
  let data = Buffer.alloc(0);

  const take = (length) => {
    while (data.length < length) {
      const more = Buffer.allocUnsafeSlow(Math.max(65536, length - data.length));
      const read = fs.readSync(protocol.JOB_FD, more, 0, more.length, null);
      if (read === 0) process.reallyExit(protocol.EXIT_NO_JOB);
      data = data.length === 0 ? more.subarray(0, read)
        : Buffer.concat([data, more.subarray(0, read)]);
    }
    const taken = data.subarray(0, length);
    data = data.subarray(length);
    return taken;
  };
  const word = () => take(4).readUInt32LE(0);
  const withoutNul = (bytes) => {
    if (bytes.length === 0 || bytes.indexOf(0) !== bytes.length - 1) throw new Error('no NUL');
    return bytes.subarray(0, bytes.length - 1);
  };
  const path = () => {
    const length = word();
    if (length > protocol.PATH_BYTES) throw new Error('long path');
    return withoutNul(take(length));
  };
  // Strings, each behind its length and with its NUL.
  const splitStrings = (bytes) => {
    const strings = [];
    for (let at = 0; at < bytes.length;) {
      const end = at + 8 + Number(bytes.readBigUInt64LE(at));
      if (end > bytes.length) throw new Error('long string');
      strings.push(withoutNul(bytes.subarray(at + 8, end)).toString('utf8'));
      at = end;
    }
    return strings;
  };
  const writeFile = (name, mode, content) => fs.writeFileSync(name, content, {
    mode,
    flag: fs.constants.O_WRONLY | fs.constants.O_CREAT | fs.constants.O_TRUNC
      | fs.constants.O_NOFOLLOW,
  });

  // Prints to a stream whose handle does nothing.
  const printSomething = () => {
    const { Console } = require('console');
    const handle = {
      getAsyncId: () => 0, setBlocking: () => 0, writeUtf8String: () => 0,
      writeLatin1String: () => 0, close: (done) => done?.call(handle), ref() {}, unref() {},
      readStop: () => 0, reading: false,
    };
    const stream = new (require('net').Socket)({ handle, readable: false, writable: true });
    // Without colours: with them, a console would open the program's own streams.
    const printer = new Console({ stdout: stream, colorMode: false });
    printer.log('%s', 1, { a: [1] });
    printer.log(1);
    printer.error('text', [1], new Error('text'));
  };

  // Runs a program in a package of its own, since Node remembers what it finds out about packages.
  const runSomething = () => {
    const place = fs.mkdtempSync('/tmp/');
    const files = [`${place}/package.json`, `${place}/main.js`];
    writeFile(files[0], 0o600, '{}');
    const program = 'const fs = require("fs"); module.exports = [__filename, fs, () => 1];';
    writeFile(files[1], 0o600, program);
    const main = Object.getOwnPropertyDescriptor(process, 'mainModule');
    Module.runMain(files[1]);
    if (main === undefined) delete process.mainModule;
    else Object.defineProperty(process, 'mainModule', main);
    delete require.cache[files[1]];
    files.forEach((file) => fs.unlinkSync(file));
    fs.rmdirSync(place);
  };

  // Goes once through what every program goes through, so that it is compiled and its pages are
  // there. No tick may be left scheduled: the program's first would not be its own.
  const warmUp = () => {
    for (const name of ['util', 'events', 'stream', 'path', 'os', 'url', 'timers', 'net']) {
      require(name);
    }
    for (const part of [printSomething, runSomething]) {
      try {
        part();
      } catch {
        // Another version of Node does this in another way: that part stays cold.
      }
    }
    process._tickCallback();
  };

  // When the event loop is empty and there is no listener for the end, the program can see nothing
  // more: it ends as by `process.exit`, without taking the whole heap apart. Node reads
  // `process.emit` then, and only then without a line of JavaScript below.
  // Everything that is used by then is bound here: the program may replace it.
  const { emit, reallyExit, _kill, pid, ppid, listenerCount } = process;
  const { openSync, readSync, closeSync } = fs;
  const { apply } = Reflect;
  const { isInteger } = Number;
  const { defineProperty, getOwnPropertyDescriptor, isExtensible } = Object;
  const [ToNumber, AnyError] = [Number, Error];
  // Of a main file that is an ES module, later versions look whether its promise is pending, which
  // changes the exit code. They tell only themselves, and such a program has no main module.
  const endsByPromise = ToNumber(process.versions.node.split('.')[0]) >= 22;
  const begins = Buffer.from(`${pid} (${protocol.LAST_WORD}`);
  const stat = Buffer.alloc(begins.length);

  const isCalledByNode = () => {
    const { prepareStackTrace, stackTraceLimit } = AnyError;
    const limit = getOwnPropertyDescriptor(AnyError, 'stackTraceLimit');
    if (!limit?.writable || !isExtensible(AnyError)) return false;
    try {
      // This function, its caller, and the getter; a fourth would be the program's.
      AnyError.stackTraceLimit = 4;
      AnyError.prepareStackTrace = (error, frames) => frames.length;
      return new AnyError().stack === 3;
    } finally {
      AnyError.stackTraceLimit = stackTraceLimit;
      if (prepareStackTrace === undefined) delete AnyError.prepareStackTrace;
      else AnyError.prepareStackTrace = prepareStackTrace;
    }
  };
  const isNamed = () => {
    const file = openSync(`/proc/${pid}/stat`);
    readSync(file, stat, 0, stat.length, 0);
    closeSync(file);
    for (let at = 0; at < stat.length; at += 1) {
      if (stat[at] !== begins[at]) return false;
    }
    return true;
  };
  // Stops with the exit code in the process name. Pid 1 reports the code, and kills this process
  // when the answer is out. If pid 1 continues this process instead, it ends as usual.
  const leave = () => {
    if (apply(listenerCount, process, ['exit']) !== 0
      || apply(listenerCount, process, ['beforeExit']) !== 0 || !isCalledByNode()
      || (endsByPromise && process.mainModule === undefined)) return;
    const code = ToNumber(process.exitCode ?? 0);
    if (!isInteger(code)) return;
    if (ppid === 1 && getOwnPropertyDescriptor(process, 'title')?.writable) {
      process.title = `${protocol.LAST_WORD}${code & 0xff}`;
      if (isNamed()) apply(_kill, process, [pid, protocol.SIGSTOP]);
    }
    apply(reallyExit, process, [code]);
  };
  const leaveEarly = () => defineProperty(Object.getPrototypeOf(process), 'emit', {
    configurable: true,
    enumerable: false,
    get() {
      if (this === process) {
        try {
          leave();
        } catch {
          // The program has changed what this looks at: it ends in its own way.
        }
      }
      return emit;
    },
    set(value) {
      defineProperty(this, 'emit', {
        configurable: true, enumerable: true, writable: true, value,
      });
    },
  });

  const takeRecords = () => {
    for (let kind = word(); kind !== protocol.JOB_EXEC; kind = word()) {
      if (kind === protocol.JOB_DIRECTORY) {
        process.chdir(path().toString('utf8'));
      } else if (kind === protocol.JOB_FILE) {
        const mode = word();
        const name = path();
        writeFile(name, mode, take(word()));
      } else {
        throw new Error('unknown record');
      }
    }
    const [, count, variables, length] = [word(), word(), word(), word()];
    if (length > protocol.EXEC_BYTES) throw new Error('long exec record');
    const strings = splitStrings(take(length));
    if (strings.length !== 1 + count + variables) throw new Error('number of strings');
    return strings.slice(1 + count);
  };

  // The variables of the job, as pairs. A job that cannot be taken ends the guest.
  const takeJob = () => {
    try {
      const wanted = takeRecords();
      fs.closeSync(protocol.JOB_FD);
      return wanted.map((pair) => {
        const at = pair.indexOf('=');
        return [pair.slice(0, at), pair.slice(at + 1)];
      });
    } catch {
      return process.reallyExit(protocol.EXIT_BAD_JOB);
    }
  };

  const setVariables = (wanted) => {
    const here = Object.entries(process.env);
    const same = here.length === wanted.length
      && here.every(([name, value], at) => name === wanted[at][0] && value === wanted[at][1]);
    if (same) return;
    // All of them again, for their order.
    for (const [name] of here) delete process.env[name];
    for (const [name, value] of wanted) process.env[name] = value;
  };

  // Node was started outside the home, since it remembers whether there was a package.
  process.chdir(require('path').dirname(process.argv[1]));
  warmUp();
  leaveEarly();
  fs.writeSync(protocol.JOB_FD, protocol.READY);
  setVariables(takeJob());
  Module._pathCache = Object.create(null);
  process._preload_modules.length = 0;
  module.children.length = 0;
}
delete require.cache[__filename];
