"""Makes an interpreter wait for its job at the last moment of its own start-up.

CPython imports this from `site`, when it is ready but has not looked at its main file yet. What
returns from here goes on exactly as `python3 main.py` does: same `__main__`, same tracebacks, same
exit. It runs in two ways, told by CLOCHE_START: `single`, one interpreter that waits for one job;
and `template`, which imports what most programs need and forks an interpreter per job. A template
does so a moment later still, when the interpreter asks what kind of file its main file is: the less
lies between a job and its program, the sooner that starts.

Nothing of it may be left for the program to see: names, modules, paths and variables are removed.
"""


# Of our own: the program may put others in their place, and these run after it.
__builtins__ = dict(vars(__import__("builtins")))


def _cloche_start():
    import os
    import sys

    home = os.path.dirname(os.path.abspath(__file__))
    way = os.environ.pop("CLOCHE_START")
    preload = os.environ.pop("CLOCHE_PRELOAD", "").split()
    del os.environ["PYTHONPATH"]
    sys.path[:] = [entry for entry in sys.path if entry != home]
    sys.path_importer_cache.pop(home, None)
    if way == "single":
        job_fd = 3
        for name in ("usercustomize.py", "__pycache__"):
            _remove(os, os.path.join(home, name))
        os.write(job_fd, b"R")
        _read_job(os, job_fd)
        if _as_if_now(os, sys):
            del sys.modules["usercustomize"]
            import usercustomize  # noqa: F401  (the home's own; if it has none, we end like that)
            return
    else:
        _ask_last(os, sys, home, preload)
    # As the import of a module that is not there: `site` takes that as it is, and the import system
    # forgets this one.
    raise ImportError(name="usercustomize")


def _ask_last(os, sys, home, preload):
    """Has the last who is asked what the main file is be a template, and answer in a new cell.

    Those before have said that it is none of theirs when it was not there yet. They are asked again if
    they might say something else now.
    """
    *others, last = sys.path_hooks

    def asked(path):
        if [path] == sys.argv[:1]:
            sys.path_hooks[-1] = last
            if _template(os, sys, home, preload):
                for hook in others:
                    try:
                        return hook(path)
                    except ImportError:
                        pass
        return last(path)

    sys.path_hooks[-1] = asked


def _template(os, sys, home, preload):
    """Forks a cell for each request; returns in the cells, when they have their job: whether a file
    of it may be an archive.
    """
    job_fd = 3
    places = set(sys.path_importer_cache)
    preloaded = _Preloaded(sys)
    preloaded.load(["ctypes", "gc", "weakref", "itertools", "select", "_operator", *preload])
    ctypes, gc, weakref = (preloaded.modules[name] for name in ("ctypes", "gc", "weakref"))
    library = ctypes.PyDLL(os.path.join(home, "template.so"))
    python = ctypes.PyDLL(None)
    track, after_fork = python.PyObject_GC_Track, python.PyOS_AfterFork_Child
    serve, wait, leave = library.cloche_serve, library.cloche_wait, library.cloche_leave
    wait.restype = ctypes.c_size_t
    seen, rehearse, leaving = _leave_fast(sys, os, python, preloaded, leave)
    for place in set(sys.path_importer_cache) - places:
        preloaded.finders[place] = sys.path_importer_cache.pop(place)
    _touch(os, sys, gc, rehearse)
    hooks = _fork_hooks(os, gc, preloaded)
    given, buffers = _prepare(os, sys, ctypes)
    # The module of the program must not be frozen: it is collected like any other at the end.
    main = sys.modules["__main__"]
    program = [ctypes.py_object(main), ctypes.py_object(vars(main))]
    for thing in program:
        python.PyObject_GC_UnTrack(thing)
    gc.freeze()
    # Nobody may take apart what is shared: it would be copied. And `site` is to be there at the end.
    shared = [
        sys.modules["site"], places, preloaded, library, python, track, after_fork, serve, wait, leave,
        seen, rehearse, leaving, hooks, given, buffers, preload,
    ]
    for kept in (shared, *shared, *globals().values()):
        python.Py_IncRef(ctypes.py_object(kept))
    # Once without a fork, so that what is looked up and made for the first time is there.
    python.PyOS_BeforeFork()
    after_fork()
    pages = _scout(os, sys, preloaded.modules["select"], leaving)
    if pages is not None:
        written, read = pages
        hot = (ctypes.c_size_t * len(written + read))(*written, *read)
        given[:3] = ctypes.addressof(hot), len(written) // 2, len(hot) // 2
        shared.append(hot)
        gc.freeze()
        os.write(job_fd, b"R")
        python.PyOS_BeforeFork()
        serve(5, given)
        # From here on: the guest of a new cell, every wall up.
        after_fork()
    for functions, all_of_them in hooks:
        functions[:] = all_of_them
    for thing in program:
        if not gc.is_tracked(thing.value):
            track(thing)
    _reseed(os, preloaded.modules)
    if pages == ([], []) and not preloaded.modules["select"].select([job_fd], [], [], 0)[0]:
        # Nobody waits for it yet.
        _touch(os, sys, gc, rehearse)
    answer = wait(given)
    others = answer & (1 << 63) - 1
    if others:
        _set_variables(os, _strings(ctypes.string_at(given[5], others - 1)))
        if _as_if_now(os, sys):
            sys.modules["site"].execusercustomize()
    return answer != others


def _prepare(os, sys, ctypes):
    """What the library is given, and what that points to: room for the pages of a scout, the
    variables that are there already, room for others, where a program's own packages would be.
    """
    variables = b"".join(
        _words(len(pair) + 1, 0) + pair + b"\0" for pair in map(b"=".join, os.environb.items()))
    packages = os.fsencode(sys.modules["site"].getusersitepackages())
    buffers = [ctypes.create_string_buffer(size) for size in (variables, 160 << 10, packages)]
    here, others, there = map(ctypes.addressof, buffers)
    rseq = [0, 0]
    try:
        library = ctypes.PyDLL(None)
        offset = ctypes.c_ssize_t.in_dll(library, "__rseq_offset").value
        if ctypes.c_uint.in_dll(library, "__rseq_size").value:
            rseq = [offset % 2**64, 32]
    except ValueError:
        pass  # a libc without it
    given = (ctypes.c_size_t * 10)(0, 0, 0, here, len(variables), others, 160 << 10, there, *rseq)
    return given, buffers


def _fork_hooks(os, gc, preloaded):
    """Leaves out, until a cell has been forked, what modules have registered for forks and need not
    be done here; the lists of functions, and what is to be in them again.

    `threading` and `logging` only make their locks anew, all of them, lest another thread held one.
    `random` seeds itself, which is done when a program imports it.
    """
    def end():
        pass

    left_out = ["logging", "threading"]
    if "random" in preloaded.waiting:
        left_out.append("random")
        seed = preloaded.waiting["random"].seed
        preloaded.effects.setdefault("random", []).append((seed, (), {}))

    os.register_at_fork(before=end, after_in_child=end, after_in_parent=end)
    lists = [found for found in gc.get_referrers(end) if type(found) is list and found[-1:] == [end]]
    hooks = []
    for functions in lists:
        functions.remove(end)
        hooks.append((functions, functions[:]))
        functions[:] = [
            function for function in functions
            if getattr(function, "__module__", None) not in left_out
        ]
    return hooks


def _scout(os, sys, select, leaving):
    """The pages that a program needs between its fork and its end, those it writes to and those it
    only reads; nothing in the scout itself.

    A scout is a copy of the template that goes the whole way of a cell, with a program of ours, and
    waits at its end. What it has by then for itself alone, it has written to, and so will everyone.
    Another copy does nothing: it shares what only the template itself has written to meanwhile.
    """
    written, read = [], []
    if not os.path.exists("/proc/self/pagemap"):
        return written, read
    (there, job), (heard, told) = os.pipe(), os.pipe()
    other = os.fork()
    if other == 0:
        os.kill(os.getpid(), 19)
    scout = os.fork()
    if scout == 0:
        nothing = os.open("/dev/null", os.O_RDWR)
        for fd, place in ((nothing, 1), (nothing, 2), (there, 3)):
            os.dup2(fd, place)
        os.close(5)
        leaving.append(told)
        return None
    os.close(there)
    os.close(told)
    strings = [b"", *map(b"=".join, os.environb.items())]
    record = [
        _words(1, 0o600, 8), b"main.py\0", _words(9), b"print(1)\n",
        _words(2, 0, 0, len(strings) - 1, sum(9 + len(string) for string in strings)),
        *[_words(len(string) + 1, 0) + string + b"\0" for string in strings],
    ]
    os.write(job, b"".join(record))
    if select.select([heard], [], [], 5)[0] and os.read(heard, 1):
        with open("/proc/self/maps") as maps, open("/proc/%d/pagemap" % scout, "rb", 0) as pagemap:
            for line in maps:
                addresses, access, _, _, _, *name = line.split()
                start, end = (int(address, 16) >> 12 for address in addresses.split("-"))
                if access != "rw-p" and (access[0] != "r" or not name or name[0][0] != "/"):
                    continue
                pagemap.seek(start * 8)
                flags = memoryview(pagemap.read((end - start) * 8)).cast("Q")
                if access == "rw-p":
                    # Present, mapped by nobody else, and not of a file.
                    written += _ranges(start, flags, lambda flag: flag >> 56 & 0xa1 == 0x81)
                else:
                    # One of each sixteen: the kernel maps those around it as well.
                    there = {(start + at) >> 4: start + at for at, flag in enumerate(flags) if flag >> 63}
                    for page in there.values():
                        read += [page << 12, 4096]
    for pid in (scout, other):
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    os.close(job)
    os.close(heard)
    _remove(os, "main.py")
    return written, read


def _ranges(start, flags, is_wanted):
    """Pages as ranges: address and length."""
    ranges, at = [], 0
    while at < len(flags):
        begin = at
        while at < len(flags) and is_wanted(flags[at]):
            at += 1
        if at > begin:
            ranges += [(start + begin) << 12, (at - begin) << 12]
        at += 1
    return ranges


def _words(*numbers):
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def _read_job(os, job_fd):
    """Takes the files and variables of a job, as the cold start's reader does in Rust."""
    data, at = b"", 0

    def take(length):
        nonlocal data, at
        while len(data) - at < length:
            more = os.read(job_fd, max(1 << 16, length - len(data) + at))
            if not more:
                os._exit(0)
            data, at = data[at:] + more, 0
        at += length
        return data[at - length:at]

    def word(length=4):
        return int.from_bytes(take(length), "little")

    while True:
        kind = word()
        if kind == 1:
            mode = word()
            name = take(word())[:-1]
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            content = memoryview(take(word()))
            file = os.open(name, flags, mode)
            while content:
                content = content[os.write(file, content):]
            os.close(file)
        elif kind == 2:
            _, arguments, variables, _ = word(), word(), word(), word()
            strings = [take(word(8))[:-1] for _ in range(1 + arguments + variables)]
            break
        elif kind == 3:
            os.chdir(take(word())[:-1])
        else:
            os._exit(126)
    os.close(job_fd)
    _set_variables(os, strings[1 + arguments:])


def _strings(data):
    """Strings, each after its length and with its NUL."""
    strings, at = [], 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at:at + 8], "little")
        strings.append(data[at + 8:end - 1])
        at = end
    return strings


def _set_variables(os, pairs):
    wanted = [tuple(pair.split(b"=", 1)) for pair in pairs]
    here = os.environb
    if list(here.items()) != wanted:
        # All of them anew, for their order.
        here.clear()
        here.update(wanted)


def _as_if_now(os, sys):
    """Does again what the start-up has done before there was a job: time zone, and user site.

    Whether there is a user site, so that its own `usercustomize` is still to be imported.
    """
    if "TZ" in os.environ:
        sys.modules["time"].tzset()
    site = sys.modules["site"]
    packages = site.getusersitepackages()
    if not os.path.isdir(packages):
        return False
    later = [entry for entry in site.getsitepackages() if entry in sys.path]
    rest = sys.path[sys.path.index(later[0]):] if later else []
    del sys.path[len(sys.path) - len(rest):]
    site.addsitedir(packages)
    sys.path.extend(rest)
    return True


def _reseed(os, modules):
    """What a fork does not make different between siblings, who all have the same pid."""
    numpy_random = modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    ssl = modules.get("_ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(64), 64.0)
    tempfile = modules.get("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None
    process = modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def _touch(os, sys, gc, rehearse):
    """Writes once to what every program writes to, so that its pages are copied by now.

    Mostly a rehearsal of what lies between a job and its program: its variables are compared, the
    user site is looked for, this module's import fails, a main file is looked at and compiled.
    """
    importlib = sys.modules["_frozen_importlib"]

    class Absent:
        create_module = staticmethod(lambda spec: None)

        @staticmethod
        def exec_module(module):
            raise ImportError(name=module.__name__)

    namespace = {"__name__": "warm"}
    source = "import os, sys\nprint('', end='')\nwarm = [str(n) for n in range(32)]\n"
    exec(compile(source, "warm", "exec"), namespace)
    with open("/dev/null", "rb") as nothing:
        nothing.read()
    dict(pair.split(b"=", 1) for pair in [b"=".join(pair) for pair in os.environb.items()])
    os.path.isdir(sys.modules["site"].getusersitepackages())
    for attempt in [
        lambda: __import__("cloche_has_no_such_module"),
        lambda: importlib._load(importlib.ModuleSpec("cloche_has_no_such_module", Absent)),
    ] + [lambda hook=hook: hook("/etc/passwd") for hook in sys.path_hooks]:
        try:
            attempt()
        except ImportError:
            pass
    sys.path_importer_cache.pop("/etc/passwd", None)
    # What the interpreter writes to when it ends: every module, all that is built in, what the
    # collector goes through.
    for kept in (dict(vars(sys)), dict(vars(sys.modules["builtins"])), dict(sys.modules)):
        kept.clear()
    list(map(sys.modules["_weakref"].ref, sys.modules.values()))
    gc.collect()
    rehearse()


def _remove(os, path):
    try:
        if os.path.isdir(path):
            for name in os.listdir(path):
                os.unlink(os.path.join(path, name))
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        pass


class _Preloaded:
    """Modules that were imported ahead and wait, out of sight, for a program to import them.

    `sys.modules` has none of them. When a program imports one, it gets there with what it had
    imported itself, in the order it had, and what it had registered is registered now. If a module
    of that name, or of one it needs, would be found elsewhere by now (the program has a `random.py`
    beside it), it is not used, and the import goes its usual way.
    """

    def __init__(self, sys):
        self.sys = sys
        self.modules = {}  # all of them, in the order they were ready
        self.waiting = {}  # those that the program has not imported yet
        self.used = []  # those that it has, by name
        self.specs = {}
        self.imports = {}  # what each has imported
        self.effects = {}  # what each has registered
        self.aliases = {}  # what each has put under another name
        self.plans = {}
        self.finders = {}
        self.places = [place for place in sys.path if place]

    def load(self, names):
        """Imports them, noting what each module does, and puts them out of sight."""
        sys, bare = self.sys, dict(self.sys.modules)
        builtins = bare["builtins"]
        self.importing = importing = builtins.__import__
        pending = []

        def noting(name, globals=None, locals=None, fromlist=(), level=0):
            who = (globals or {}).get("__name__") or ""
            if who.startswith("importlib._bootstrap") and pending:
                who = pending[-1]
            full = name
            if level:
                package = globals.get("__package__") or who.rpartition(".")[0]
                package = package.rsplit(".", level - 1)[0] if level > 1 else package
                full = package + "." + name if name else package
            pending.append(full)
            try:
                result = importing(name, globals, locals, fromlist, level)
            finally:
                pending.pop()
            noted = self.imports.setdefault(who, {})
            noted[full] = None
            for item in fromlist or ():
                if full + "." + item in sys.modules:
                    noted[full + "." + item] = None
            return result

        def note(function, arguments, keywords):
            who = sys._getframe(2).f_globals.get("__name__")
            self.effects.setdefault(who, []).append((function, arguments, keywords))

        def registering(*arguments, **keywords):
            note(register, arguments, keywords)
            return arguments[0]

        def reducing(*arguments):
            note(reduce, arguments, {})

        builtins.__import__ = noting
        import atexit
        import copyreg

        reductions = dict(copyreg.dispatch_table)
        register, atexit.register = atexit.register, registering
        reduce, copyreg.pickle = copyreg.pickle, reducing
        for name in names:
            try:
                builtins.__import__(name)
            except ImportError:
                pass
        atexit.register, copyreg.pickle, builtins.__import__ = register, reduce, importing
        copyreg.dispatch_table.clear()
        copyreg.dispatch_table.update(reductions)
        self.put_away(bare)
        for name in names:
            if name in self.waiting:
                self.plan(name)
        self.hook(bare["_frozen_importlib"])

    def put_away(self, bare):
        for name, module in list(self.sys.modules.items()):
            if name in bare or module is None:
                continue
            spec = getattr(module, "__spec__", None)
            self.modules[name] = module
            if getattr(spec, "name", None) == name:
                self.waiting[name], self.specs[name] = module, spec
            else:
                # Another name that a module has put there for itself or a part of itself.
                self.aliases.setdefault(name.rpartition(".")[0], {})[name] = module
        self.sys.modules.clear()
        self.sys.modules.update(bare)
        for name, module in self.waiting.items():
            package, _, last = name.rpartition(".")
            package = self.modules.get(package) or bare.get(package)
            if package is not None and vars(package).get(last) is module:
                delattr(package, last)

    def hook(self, importlib):
        """Has the first finder of all look here; it is asked whatever the program imports."""
        finder, waiting = importlib.BuiltinImporter, self.waiting
        natively = finder.find_spec.__func__

        def find_spec(cls, fullname, path=None, target=None):
            if fullname in waiting:
                names, places = self.plan(fullname)
                if self.are_found(places):
                    for name in names:
                        if name in waiting and name != fullname:
                            self.sys.modules[name] = module = self.create_module(name)
                            self.finish(name, module)
                    return importlib.ModuleSpec(fullname, self)
            return natively(cls, fullname, path, target)

        find_spec.__qualname__ = natively.__qualname__
        find_spec.__module__ = natively.__module__
        finder.find_spec = classmethod(find_spec)

    def plan(self, name):
        """What comes with a module, in order; and their first names, by where they were found."""
        plan = self.plans.get(name)
        if plan is None:
            found, todo, places = {name}, [name], {}
            while todo:
                more = todo.pop()
                for needed in (more.rpartition(".")[0], *self.imports.get(more, ())):
                    if needed in self.modules and needed not in found:
                        found.add(needed)
                        todo.append(needed)
            for first in {needed.partition(".")[0] for needed in found}:
                spec = self.specs.get(first)
                if spec is not None and spec.has_location:
                    place, _, file = spec.origin.rpartition("/")
                    # Not by where it has its own modules: a single file (`six`) may say it has some.
                    if file.startswith("__init__."):
                        place = place.rpartition("/")[0]
                    places.setdefault(place, set()).add(first)
            plan = [needed for needed in self.modules if needed in found], places
            self.plans[name] = plan
        return plan

    def are_found(self, places):
        """Whether an import would find these where they were found ahead.

        The places that were there ahead cannot be written to: only what was added since, like the
        program's own directory, can hold another module of the same name.
        """
        left, before = dict(places), iter(self.places)
        for entry in self.sys.path:
            if entry in self.places:
                if next((place for place in before if place == entry), None) is None:
                    return False  # in another order
                left.pop(entry, None)
                continue
            finder = self.finder(entry)
            for names in left.values():
                if finder is not None and not self.is_without(finder, names):
                    return False
        return not left

    def is_without(self, finder, names):
        finder.find_spec(next(iter(names)))  # has it look again if its directory has changed
        there = getattr(finder, "_path_cache", None)
        if there is not None:
            names = names.intersection([file.partition(".")[0] for file in there])
        specs = [finder.find_spec(name) for name in names]
        return all(spec is None or spec.loader is None for spec in specs)

    def finder(self, entry):
        """What looks into a directory; made if need be, as the import system does it."""
        try:
            return self.sys.path_importer_cache[entry]
        except KeyError:
            external = self.sys.modules["_frozen_importlib_external"]
            return external.PathFinder._path_importer_cache(entry)

    def create_module(self, spec):
        name = getattr(spec, "name", spec)
        self.used.append(name)
        return self.waiting.pop(name)

    def exec_module(self, module):
        name = module.__spec__.name
        module.__spec__ = self.specs[name]
        self.finish(name, module)

    def finish(self, name, module):
        """What the module did when it was imported, as far as others see it."""
        package, _, last = name.rpartition(".")
        if package:
            package = self.sys.modules.get(package) or self.modules.get(package)
            if package is not None:
                vars(package).setdefault(last, module)
                for entry in getattr(package, "__path__", ()):
                    if entry in self.finders:
                        self.sys.path_importer_cache.setdefault(entry, self.finders[entry])
        if name in self.aliases:
            self.sys.modules.update(self.aliases[name])
        for function, arguments, keywords in self.effects.get(name, ()):
            function(*arguments, **keywords)


# Modules in C whose objects end without anyone noticing.
_QUIET = frozenset("""
    _abc _ast _bisect _blake2 _codecs _collections _collections_abc _csv _datetime _decimal _functools
    _hashlib _heapq _io _json _locale _md5 _opcode _operator _posixsubprocess _random _sha1 _sha256
    _sha3 _sha512 _signal _sre _stat _statistics _string _struct _symtable _thread _tokenize
    _tracemalloc _typing _uuid _warnings _weakref array atexit binascii builtins cmath errno fcntl
    itertools marshal math posix pwd resource select sys time unicodedata zlib
""".split())


def _leave_fast(sys, os, python, preloaded, leave_now):
    """Ends forked interpreters without taking apart what they share with their template.

    A full finalisation writes to every object, and so copies every page. So an interpreter leaves
    after its last exit function, if all that the program has left are things whose end nobody can
    notice and the exit code is known for certain. Otherwise it ends in its own way (streams,
    the program's modules) up to where it would take apart the modules it had before the program;
    there it stops, on the same conditions. Else it goes on.
    """
    modules, used = preloaded.modules, preloaded.used
    gc, weakref, itertools, operator = (
        modules[name] for name in ("gc", "weakref", "itertools", "_operator"))
    frame, finalizing = sys._getframe, sys.is_finalizing
    objects, main = gc.get_objects, weakref.ref(sys.modules["__main__"])
    stdout, stderr = sys.stdout, sys.stderr
    kinds = len(SystemExit.__subclasses__())
    asked, seen, leaving, quiet = [], [], [], []
    filters, bare = sys.modules["_warnings"].filters, frozenset(sys.modules)
    filtered, plain, is_new = len(filters), set(), lambda name: name not in bare
    bases_of, names_of = (vars(type)[name].__get__ for name in ("__mro__", "__dict__"))
    ModuleSpec = sys.modules["_frozen_importlib"].ModuleSpec
    # `site` is the last module that was there before the program, so the first of them to go; and
    # what begins with one underscore goes first.
    site = vars(sys.modules["site"])
    last = next(name for name in site if name[0] == "_" != name[1] and callable(site[name]))
    attributes = gc.get_referents(SystemExit.__dict__)[0]
    member = attributes["code"]

    class Code:
        """The `code` of SystemExit, which notes when the interpreter itself asks for it."""

        __slots__ = ()

        def __get__(self, instance, owner=None):
            if instance is None:
                return member
            value = member.__get__(instance, owner)
            try:
                frame(1)
            except ValueError:
                asked.append(value)
            return value

        def __set__(self, instance, value):
            member.__set__(instance, value)

        def __delete__(self, instance):
            member.__delete__(instance)

    def get(objects, name):
        return map(getattr, objects, (name,), (None,))

    def call(function):
        return itertools.starmap(function, ((),))

    def look():
        """What is to be seen after all exit functions, once this is gone through.

        All of it runs without a frame of its own, which a trace function would notice.
        """
        system = (sys,)
        yield map(operator.contains, call(sys._current_frames), (sys.modules["_thread"].get_ident(),))
        yield map(id, itertools.chain(get(system, "stdout"), get(system, "stderr")))
        yield map(hasattr, system, ("last_type",))
        names = ("__name__", "__file__", "__cached__")
        yield map(operator.contains, itertools.repeat(vars(main())), names)

    def look_closer():
        """The same, of what is only needed where the program has failed, or it is not over by then."""
        system, trace, value = (sys,), "last_traceback", get((sys,), "last_value")
        yield map(len, map(type.__subclasses__, (SystemExit,)))
        yield map(isinstance, value, (KeyboardInterrupt,))
        yield get(get(system, trace), "tb_lasti")
        yield get(get(get(system, trace), "tb_frame"), "f_lasti")
        yield map(id, get(get(get(system, trace), "tb_frame"), "f_back"))
        yield get(get(get(get(system, trace), "tb_frame"), "f_code"), "co_name")

    def go_on():
        """What has to be done where it is not over by then."""
        end_of = (site[last],)
        for tracer in (sys.gettrace, sys.getprofile):
            end_of = itertools.compress(end_of, map(operator.is_, call(tracer), (None,)))
        yield map(weakref.ref, end_of, (end,))
        # Not to be taken apart, unless something of the program's depends on it: see below.
        yield map(sys.modules.pop, used, itertools.repeat(None))

    def exit_code():
        """As far as it is certain."""
        in_program, out, err, failed, named, *left = seen[:7]
        if in_program or (out, err) != (id(stdout), id(stderr)):
            return None
        # Nothing, before there was a closer look.
        subclasses, interrupted, *where = seen[7:13] or (kinds, True)
        if subclasses != kinds:
            return None
        if not named:
            return None
        if any(left):
            # It was ended by `sys.exit` or its like: nobody else may have asked for a code.
            if len(asked) != 1:
                return None
            code = asked[0]
            if code is None:
                return 0
            if type(code) is not int:
                return 1 if type(code) is str else None
            return code & 0xFF if -2**63 <= code < 2**63 else 0xFF
        if not failed:
            return 0
        # The interpreter forgets the name of the main file when that is through, however it ended;
        # an exception ended it if the program's frame is where its traceback begins.
        begins, ended, below, name = where or (None,) * 4
        fell = begins is not None and begins == ended and below == id(None) and name == "<module>"
        return 1 if fell and not interrupted else None

    def clear(names):
        """As CPython does it."""
        for private in (True, False):
            for name in list(names):
                if name != "__builtins__" and (name[:1] == "_" and name[1:2] != "_" or not private):
                    names[name] = None

    def has_end(kind):
        return any("__del__" in names_of(base) for base in bases_of(kind))

    def is_noticeable():
        """Whether an object is left whose end a program could see."""
        return any(map(has_end, {type(thing) for thing in objects()}))

    def leave(code):
        try:
            if all(stream.closed or stream.write_through for stream in (stdout, stderr)):
                if leaving:
                    # A scout: it has seen everything.
                    os.write(leaving[0], b".")
                    os.kill(os.getpid(), 19)
                if not quiet:
                    # A library in C may have something to do or to print at the very end.
                    python.exit(code)
                leave_now(code)
        except BaseException:
            return

    def is_quiet(module):
        """Whether what a module has made ends unnoticed, but for what is written in Python."""
        spec = vars(module).get("__spec__") if type(module) is type(sys) else None
        if type(spec) is not ModuleSpec:
            return False
        return (spec.origin or "")[-3:] == ".py" or spec.name in _QUIET

    def is_plain(thing):
        """Whether nobody notices the end of a thing or, if it is a kind of thing, of one of those."""
        kind = type(thing)
        if id(kind) in plain:
            return True
        if issubclass(kind, type):
            return not has_end(thing) and not any(base is SystemExit for base in bases_of(thing))
        if kind is weakref.ref:
            return is_harmless(thing.__callback__)
        if has_end(kind) or issubclass(kind, weakref.ProxyTypes + (weakref.ref,)):
            return False
        plain.add(id(kind))
        return True

    def is_harmless(callback):
        """None, or how abstract classes forget others."""
        if type(callback) is not type(len):
            return callback is None
        return callback.__name__ == "_destroy" and type(callback.__self__) is weakref.ref

    def end_early(_):
        """After the last exit function, while all that the program has made is still there."""
        try:
            leave_if_quiet()
        except BaseException:
            return  # the program has changed what we look at

    def leave_if_quiet():
        if seen[3]:
            seen.extend(itertools.chain.from_iterable(look_closer()))
        code = exit_code()
        if code is None or len(sys._current_frames()) > 1 or gc.callbacks or gc.get_debug():
            return
        # What the program has imported comes last; the rest is not looked at, and so not copied.
        new = list(itertools.takewhile(is_new, reversed(sys.modules)))
        if len(filters) != filtered or len(sys.modules) != len(new) + len(bare):
            return
        if all(map(is_quiet, map(sys.modules.get, new))):
            quiet.append(True)
            things = objects()
            if plain.issuperset(map(id, map(type, things))) or all(map(is_plain, things)):
                leave(code)

    def end(_):
        code = exit_code() if finalizing() else None
        if code is None:
            return
        module = main()
        if module is not None:
            clear(vars(module))
            module = None
        if is_noticeable():
            for name in reversed(used):
                clear(vars(modules[name]))
            if is_noticeable():
                return
        leave(code)

    attributes["code"] = Code()
    python.PyType_Modified(modules["ctypes"].py_object(SystemExit))
    # After all others, and the last of these first.
    untraced = (None,)
    for tracer in (sys.gettrace, sys.getprofile):
        untraced = itertools.compress(untraced, map(operator.is_, call(tracer), (None,)))
    later = itertools.chain.from_iterable([*look_closer(), *go_on()])
    modules["atexit"].register(seen.extend, later)
    modules["atexit"].register(any, map(end_early, untraced))
    modules["atexit"].register(seen.extend, itertools.chain.from_iterable(list(look())))

    def rehearse():
        """Goes through the end without ending."""
        seen.extend(itertools.chain.from_iterable([*look(), *look_closer(), *go_on()]))
        exit_code()
        is_noticeable()
        list(map(is_plain, objects()))
        seen.clear()

    return seen, rehearse, leaving


_cloche_start()
