'use strict';
// Makes a Node.js interpreter wait for its job at the last moment of its own start-up: it is
// required before the main file is looked at, and what returns from here goes on exactly as
// `node main.js` does. Nothing of it may be left for the program to see.
//
// The file stays where it is, since threads of the program take over the options of the process and
// require it again: for them it does nothing.
if (process.env.NODE_OPTIONS === `--require=${__filename}`) {
  const fs = require('fs');
  const Module = require('module');
  const JOB = 3;
  let data = Buffer.alloc(0);

  const take = (length) => {
    while (data.length < length) {
      const more = Buffer.allocUnsafeSlow(Math.max(65536, length - data.length));
      const read = fs.readSync(JOB, more, 0, more.length, null);
      if (read === 0) process.reallyExit(0);
      data = data.length === 0 ? more.subarray(0, read)
        : Buffer.concat([data, more.subarray(0, read)]);
    }
    const taken = data.subarray(0, length);
    data = data.subarray(length);
    return taken;
  };
  const word = () => take(4).readUInt32LE(0);
  const text = () => {
    const length = Number(take(8).readBigUInt64LE(0));
    return take(length).toString('utf8', 0, length - 1);
  };
  const writeFile = (path, mode, content) => fs.writeFileSync(path, content, {
    mode,
    flag: fs.constants.O_WRONLY | fs.constants.O_CREAT | fs.constants.O_TRUNC
      | fs.constants.O_NOFOLLOW,
  });

  // A stream over a pipe that is none: what is written to it goes nowhere.
  const printSomething = () => {
    const { Console } = require('console');
    const handle = {
      getAsyncId: () => 0, setBlocking: () => 0, writeUtf8String: () => 0, writeLatin1String: () => 0,
      close: (done) => done?.call(handle), ref() {}, unref() {}, readStop: () => 0, reading: false,
    };
    const stream = new (require('net').Socket)({ handle, readable: false, writable: true });
    // Without colours: with them, a console would open the program's own streams.
    const printer = new Console({ stdout: stream, colorMode: false });
    printer.log('%s', 1, { a: [1] });
    printer.log(1);
    printer.error('text', [1], new Error('text'));
  };

  // In a package of its own: what is found out about packages is remembered.
  const runSomething = () => {
    const place = fs.mkdtempSync('/tmp/');
    const files = [`${place}/package.json`, `${place}/main.js`];
    writeFile(files[0], 0o600, '{}');
    writeFile(files[1], 0o600, 'const fs = require("fs"); module.exports = [__filename, fs, () => 1];');
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
        // Another version has it another way: then it is not warm.
      }
    }
    process._tickCallback();
  };

  // When the event loop is empty and nobody listens for the end, nothing is left to be seen of the
  // program: it ends as by `process.exit`, without taking the whole heap apart. Node asks for
  // `process.emit` then, and only then without a line of JavaScript below.
  // All that is used by then is taken now: the program may put others in its place.
  const leaveEarly = () => {
    const { emit, reallyExit, _kill, pid, ppid, listenerCount } = process;
    const { openSync, readSync, closeSync } = fs;
    const { apply } = Reflect;
    const { isInteger } = Number;
    const { defineProperty, getOwnPropertyDescriptor, isExtensible } = Object;
    const [ToNumber, AnyError] = [Number, Error];
    const begins = Buffer.from(`${pid} (cloche end `);
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
    // Pid 1 is told the code, and has all of this taken apart when the answer is out. If that is of no
    // use it lets us go on, to the usual end.
    const leave = () => {
      if (apply(listenerCount, process, ['exit']) !== 0
        || apply(listenerCount, process, ['beforeExit']) !== 0 || !isCalledByNode()) return;
      const code = ToNumber(process.exitCode ?? 0);
      if (!isInteger(code)) return;
      if (ppid === 1 && getOwnPropertyDescriptor(process, 'title')?.writable) {
        process.title = `cloche end ${code & 0xff}`;
        if (isNamed()) apply(_kill, process, [pid, 19]);
      }
      apply(reallyExit, process, [code]);
    };
    defineProperty(Object.getPrototypeOf(process), 'emit', {
      configurable: true,
      enumerable: false,
      get() {
        if (this === process) {
          try {
            leave();
          } catch {
            // The program has changed what we look at: it ends in its own way.
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
  };

  const takeJob = () => {
    for (let kind = word(); kind !== 2; kind = word()) {
      if (kind === 3) {
        const directory = take(word());
        process.chdir(directory.toString('utf8', 0, directory.length - 1));
        continue;
      }
      if (kind !== 1) process.reallyExit(126);
      const mode = word();
      const name = take(word());
      writeFile(name.subarray(0, name.length - 1), mode, take(word()));
    }
    word();
    const [count, variables] = [word(), word()];
    word();
    for (let at = 0; at < 1 + count; at += 1) text();
    const wanted = [];
    for (let at = 0; at < variables; at += 1) wanted.push(text());
    fs.closeSync(JOB);
    return wanted.map((pair) => [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1)]);
  };

  const setVariables = (wanted) => {
    const here = Object.entries(process.env);
    const same = here.length === wanted.length
      && here.every(([name, value], at) => name === wanted[at][0] && value === wanted[at][1]);
    if (same) return;
    // All of them anew, for their order.
    for (const [name] of here) delete process.env[name];
    for (const [name, value] of wanted) process.env[name] = value;
  };

  // It was started elsewhere, since Node has looked for a package where it was started.
  process.chdir(require('path').dirname(process.argv[1]));
  warmUp();
  leaveEarly();
  fs.writeSync(JOB, 'R');
  setVariables(takeJob());
  Module._pathCache = Object.create(null);
  process._preload_modules.length = 0;
  module.children.length = 0;
}
delete require.cache[__filename];
