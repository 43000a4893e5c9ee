"""Runs in: the guest of a cell that was forked from a template, when its program has ended.

Which objects and modules end without anything that a program could notice. The fast exit asks.

A wrong yes would change what a program does, a no costs it some milliseconds. So an object with a
`__del__` counts as noticeable, also one from the standard library, but for those whose end is
known. Nothing here may use what the program can replace: what is needed is bound ahead.
"""

import os
import sys

from cloche import own_builtins as __builtins__  # noqa: F401

# Modules in C whose objects end unnoticed, but for those with a `__del__`, which are looked at one
# by one. A module that is not here costs the first chance: `ctypes` loads libraries that end in
# their own way, `dbm` writes when it closes.
_QUIET = frozenset("""
    _abc _ast _asyncio _bisect _blake2 _bz2 _codecs _collections _collections_abc _contextvars _csv
    _datetime _decimal _elementtree _functools _hashlib _heapq _hmac _io _json _locale _lzma _md5
    _multiprocessing _opcode _operator _pickle _posixshmem _posixsubprocess _queue _random _sha1
    _sha2 _sha256 _sha3 _sha512 _signal _socket _sqlite3 _sre _ssl _stat _statistics _string _struct
    _suggestions _symtable _sysconfig _thread _tokenize _tracemalloc _types _typing _uuid _warnings
    _weakref _zoneinfo _zstd array atexit binascii builtins cmath errno fcntl gc grp itertools
    marshal math mmap posix pwd pyexpat resource select sys termios time unicodedata zlib
""".split())
# Classes in C whose `__del__` goes unnoticed, by their modules. A connection, since 3.12, ends its
# transaction and calls nothing of the program when the interpreter ends; its warning is not shown.
# Of sockets only closed ones are left when this is used.
_QUIET_IN_C = ("_sqlite3", "Connection"), ("_socket", "socket")
# Objects that may be keys of weak dictionaries: comparing them runs nothing of the program.
_PLAIN_KEYS = (str, int, bytes)


class QuietEnds:
    """Knows whose end goes unnoticed."""

    def __init__(self, preloaded):
        self.weakref = preloaded.module("weakref")
        self.reference, self.proxies = self.weakref.ref, self.weakref.ProxyTypes
        self.plain = set()  # the ids of types whose objects end unnoticed
        self.without_end = set()  # the ids of types whose `__del__` does not count
        self.end_in_c = type(object.__init__)  # what `__del__` is in a class that is written in C
        self.listdir, self.fstat = os.listdir, os.fstat
        self.bases_of, self.names_of, self.name_of, self.flags_of = (
            vars(type)[name].__get__ for name in ("__mro__", "__dict__", "__name__", "__flags__"))
        self.importers = sys.modules["_frozen_importlib"], sys.modules["_frozen_importlib_external"]
        self.ModuleSpec = self.importers[0].ModuleSpec
        self._bind_streams(sys.modules["_io"])
        self._bind_generators()
        self._bind_callbacks(preloaded)
        # By the ids of classes with a `__del__`: whether that does nothing for an object.
        self.known = {
            **dict.fromkeys(map(id, self.bare_streams), lambda stream: True),
            **dict.fromkeys(map(id, self.writers), self._is_closed_writer),
            id(self.text): self._is_quiet_text, id(self.generator): self._is_quiet_generator}
        subprocess = preloaded.modules.get("subprocess")
        if subprocess is not None:
            self.Popen, self.popen_end = subprocess.Popen, vars(subprocess.Popen)["__del__"]
            self.known[id(self.Popen)] = self._is_ended_process

    def _bind_streams(self, io):
        # What these have is written at once, or only read.
        self.bare_streams = io.FileIO, io.BytesIO, io.StringIO, io.BufferedReader
        self.writers, self.text = (io.BufferedWriter, io.BufferedRandom), io.TextIOWrapper
        self.file, self.is_closed = io.FileIO, vars(io.FileIO)["closed"].__get__
        self.raw_of = {kind: vars(kind)["raw"].__get__ for kind in self.writers}
        self.buffer_of = vars(io.TextIOWrapper)["buffer"].__get__

    def _bind_generators(self):
        self.generator = type(one for one in ())
        names = "gi_suspended", "gi_yieldfrom", "gi_code"
        self.is_suspended, self.delegate_of, self.code_of = (
            vars(self.generator)[name].__get__ for name in names)
        # Since 3.12 the code of every generator has one handler of its own.
        self.own_handlers = 1 if sys.version_info >= (3, 12) else 0

    def _bind_callbacks(self, preloaded):
        """The callbacks with which weak collections, and `logging`, forget an object."""
        self.callbacks, self.callback_codes = (), []
        for kind in ("WeakSet", "WeakValueDictionary", "WeakKeyDictionary"):
            code = vars(vars(self.weakref)[kind])["__init__"].__code__
            self.callback_codes += [one for one in code.co_consts if type(one) is type(code)]
        self.function = type(self._bind_callbacks.__func__)
        self.keyed, self.key_of = self.weakref.KeyedRef, vars(self.weakref.KeyedRef)["key"].__get__
        logging = preloaded.modules.get("logging")
        if logging is not None:
            self.callbacks = (logging._removeHandlerRef,)

    def is_quiet_module(self, module):
        """Whether what a module has made ends unnoticed, but for what is written in Python."""
        if issubclass(type(module), type) or any(module is importer for importer in self.importers):
            return True  # a class, like `typing.io`, is looked at with the other objects
        if type(module) is not type(sys):
            return False
        spec = vars(module).get("__spec__")
        if spec is None:
            return True  # made by code in Python, or by the module in C of which it is a part
        if type(spec) is not self.ModuleSpec:
            return False
        return (spec.origin or "")[-3:] == ".py" or spec.origin == "frozen" or spec.name in _QUIET

    def are_all_quiet(self, things):
        """Whether each of these objects ends unnoticed."""
        if "_sqlite3" in sys.modules and not self._are_databases_quiet(things):
            return False
        if "_socket" in sys.modules and not self._are_sockets_closed(things):
            return False
        for name, kind in _QUIET_IN_C:
            if name in sys.modules:
                found = vars(sys.modules[name])[kind]
                if type(self.names_of(found).get("__del__")) is self.end_in_c:
                    self.without_end.add(id(found))
        kinds = map(id, map(type, things))
        return self.plain.issuperset(kinds) or all(map(self.is_plain, things))

    def is_plain(self, thing):
        """Whether the end of an object goes unnoticed; of a class, that of its instances."""
        kind, reference = type(thing), self.reference
        if id(kind) in self.plain:
            return True
        if id(kind) in self.known:
            return self.known[id(kind)](thing)
        if kind is reference:
            return self._is_harmless(thing.__callback__)
        if kind is self.keyed:
            return type(self.key_of(thing)) in _PLAIN_KEYS and self._is_harmless(thing.__callback__)
        if self.has_end(kind) or issubclass(kind, (*self.proxies, reference)):
            return False
        if issubclass(kind, type):
            # Instances that the collector knows are looked at themselves.
            is_exit = any(base is SystemExit for base in self.bases_of(thing))
            return not is_exit and (self._has_tracked_objects(thing) or not self.has_end(thing))
        self.plain.add(id(kind))
        return True

    def is_noticeable(self, thing):
        """Whether an object has a `__del__` that may do something."""
        try:
            is_quiet = self.known[id(type(thing))]
        except KeyError:
            return self.has_end(type(thing))
        try:
            return not is_quiet(thing)
        except Exception:
            return True

    def has_end(self, kind):
        """Whether objects of a class have a `__del__` that counts."""
        return any("__del__" in self.names_of(base) and id(base) not in self.without_end
                   for base in self.bases_of(kind))

    def _has_tracked_objects(self, kind):
        return self.flags_of(kind) >> 14 & 1

    def _is_harmless(self, callback):
        """Whether it is None, or how weak collections, abstract classes, `logging` and thread-local
        data forget others.
        """
        if type(callback) is self.function:
            return callback in self.callbacks or any(
                callback.__code__ is code for code in self.callback_codes)
        if type(callback) is not type(len):
            return callback is None
        is_known = callback.__name__ in ("_destroy", "_localdummy_destroyed")
        return is_known and type(callback.__self__) is self.reference

    # Objects that end unnoticed in some of their states. All of them are of exactly these classes.

    def _is_closed_writer(self, stream):
        """Whether a stream has no bytes left to write, since its file is closed."""
        raw = self.raw_of[type(stream)](stream)
        return type(raw) is self.file and self.is_closed(raw)

    def _is_quiet_text(self, stream):
        """Whether the stream below ends unnoticed, so that nothing is left to write."""
        buffer = self.buffer_of(stream)
        if type(buffer) in self.writers:
            return self._is_closed_writer(buffer)
        return type(buffer) in self.bare_streams

    def _is_quiet_generator(self, generator):
        """Whether a generator has not begun, has ended, or handles no exception: not even the one
        that ends it.
        """
        if not self.is_suspended(generator):
            return True
        # Each handler begins with a byte that has this bit.
        handlers = sum(byte >> 7 for byte in self.code_of(generator).co_exceptiontable)
        return handlers == self.own_handlers and self.delegate_of(generator) is None

    def _is_ended_process(self, process):
        """Whether a child of `subprocess` was waited for."""
        is_own_end = vars(type(process))["__del__"] is self.popen_end
        return is_own_end and type(vars(process).get("returncode")) is int

    # Sockets and databases.

    def _are_sockets_closed(self, things):
        """Whether no socket is open. The peer of one would notice its end only when pid 1 has taken
        the cell apart.
        """
        kind = vars(sys.modules["_socket"])["socket"]
        descriptor_of = self.names_of(kind)["fileno"]
        return all(descriptor_of(thing) < 0 for thing in things
                   if any(base is kind for base in self.bases_of(type(thing))))

    def _are_databases_quiet(self, things):
        """Whether no open database is a file. The end of one rolls back and removes the journal.

        Until then SQLite has the file open. Without an open file every database is in memory.
        """
        return not any(map(self._keeps_database, things)) or not any(
            map(self._is_regular_file, self.listdir("/proc/self/fd")))

    def _keeps_database(self, thing):
        """Whether an object of `sqlite3` keeps a database open. A statement keeps one open that is
        closed otherwise.
        """
        for base in self.bases_of(type(thing)):
            names = self.names_of(base)
            if names.get("__module__") == "sqlite3" and self.name_of(base) == "Statement":
                return True
            if names.get("__module__") == "sqlite3" and self.name_of(base) == "Connection":
                try:
                    names["total_changes"].__get__(thing)
                except Exception:
                    return False  # it is closed
                return True
        return False

    def _is_regular_file(self, descriptor):
        try:
            return self.fstat(int(descriptor)).st_mode & 0o170000 == 0o100000
        except OSError:
            return False  # the descriptor of the listing itself, which is closed
