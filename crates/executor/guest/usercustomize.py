"""Makes an interpreter wait for its job at the last moment of its own start-up.

CPython imports this from `site`, when it is ready but has not looked at its main file yet. What
returns from here goes on exactly as `python3 main.py` does: same `__main__`, same tracebacks, same
exit. It runs in two ways, told by CLOCHE_START: `single`, one interpreter that waits for one job;
and `template`, which imports what most programs need and forks an interpreter per job.

Nothing of it may be left for the program to see: names, modules, paths and variables are removed.
"""


def _cloche_start():
    import os
    import sys

    home = os.path.dirname(os.path.abspath(__file__))
    way = os.environ.pop("CLOCHE_START")
    preload = os.environ.pop("CLOCHE_PRELOAD", "").split()
    del os.environ["PYTHONPATH"]
    sys.path[:] = [entry for entry in sys.path if entry != home]
    sys.path_importer_cache.pop(home, None)

    job_fd = 3
    bare_modules = set(sys.modules)

    def read_job():
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
            else:
                os._exit(126)
        os.close(job_fd)
        wanted = dict(pair.split(b"=", 1) for pair in strings[1 + arguments:])
        here = os.environb
        for name in [name for name in here if name not in wanted]:
            del here[name]
        for name, value in wanted.items():
            if here.get(name) != value:
                here[name] = value

    def user_site():
        """Does for a home that has packages what `site` has done before there was one.

        Ends as the import of a module that is not there: `site` takes that as it is, and the
        import system forgets this one.
        """
        site = sys.modules["site"]
        packages = site.getusersitepackages()
        if not os.path.isdir(packages):
            raise ImportError(name="usercustomize")
        later = [entry for entry in site.getsitepackages() if entry in sys.path]
        rest = sys.path[sys.path.index(later[0]):] if later else []
        del sys.path[len(sys.path) - len(rest):]
        site.addsitedir(packages)
        sys.path.extend(rest)
        del sys.modules["usercustomize"]
        import usercustomize  # noqa: F401  (the home's own; if it has none, we end like that)

    def reseed():
        """What the operating system's fork does not make different between siblings."""
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:
            numpy_random.seed()
        ssl = sys.modules.get("_ssl")
        if ssl is not None:
            ssl.RAND_add(os.urandom(64), 64.0)

    def touch(gc):
        """Writes once to what every program writes to, so that its pages are copied by now."""
        namespace = {"__name__": "warm"}
        source = "import os, sys\nprint('', end='')\nwarm = [str(n) for n in range(32)]\n"
        exec(compile(source, "warm", "exec"), namespace)
        with open("/dev/null", "rb") as nothing:
            nothing.read()
        for attempt in [lambda: __import__("cloche_has_no_such_module")] + [
            lambda hook=hook: hook("/etc/passwd") for hook in sys.path_hooks
        ]:
            try:
                attempt()
            except ImportError:
                pass
        sys.path_importer_cache.pop("/etc/passwd", None)
        gc.collect(0)

    if way == "single":
        for name in ("usercustomize.py", "__pycache__"):
            _remove(os, os.path.join(home, name))
        os.write(job_fd, b"R")
        read_job()
        user_site()
        return

    import ctypes
    import gc

    library = ctypes.PyDLL(os.path.join(home, "template.so"))
    for name in preload:
        try:
            __import__(name)
        except ImportError:
            pass
    _leave_fast(ctypes, gc, bare_modules)
    touch(gc)
    gc.collect()
    gc.freeze()
    os.write(job_fd, b"R")
    ctypes.pythonapi.PyOS_BeforeFork()
    library.cloche_serve(5)
    # From here on: the guest of a new cell, every wall up.
    ctypes.pythonapi.PyOS_AfterFork_Child()
    reseed()
    touch(gc)
    os.write(job_fd, b"R")
    read_job()
    user_site()


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


def _leave_fast(ctypes, gc, bare_modules):
    """Ends forked interpreters without taking apart what they share with their template.

    A full finalisation writes to every object, and so copies every page. Registered first, this
    runs last of all exit functions; it does what a program can observe of the rest (destructors of
    its own modules, flushed streams, the exit code) and leaves. Where it cannot be sure of the exit
    code it does nothing, and the interpreter ends in its own way.
    """
    import atexit
    import os
    import sys
    import weakref

    exit_code = []
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
                sys._getframe(1)
            except ValueError:
                exit_code[:] = [value]
            return value

        def __set__(self, instance, value):
            member.__set__(instance, value)

        def __delete__(self, instance):
            member.__delete__(instance)

    attributes["code"] = Code()
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
    frame, leave_now, collect, shared = sys._getframe, os._exit, gc.collect, []

    def redefines_code(kind):
        return any("code" in vars(sub) or redefines_code(sub) for sub in kind.__subclasses__())

    def leave():
        try:
            frame(1)
            return  # called by the program, not by the end of the interpreter
        except ValueError:
            pass
        if hasattr(sys, "last_type") or redefines_code(SystemExit):
            return
        code = exit_code[0] if exit_code else None
        if code is None:
            code = 0
        elif not isinstance(code, int):
            code = 1
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            return
        modules = sys.modules
        own = [name for name in modules if name == "__main__" or name not in shared[0]]
        left = []
        for name in own:
            module = modules[name]
            if module is not None:
                try:
                    left.append(weakref.ref(module))
                except TypeError:
                    pass
            modules[name] = module = None
        collect()
        for reference in reversed(left):
            module = reference()
            if module is not None:
                names = vars(module)
                for name in list(names):
                    if name != "__builtins__":
                        names[name] = None
                names = module = None
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            code = 120
        leave_now(code & 0xFF)

    atexit.register(leave)
    shared.append(frozenset(sys.modules) | bare_modules)


_cloche_start()
del _cloche_start, _remove, _leave_fast
