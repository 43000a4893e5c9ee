"""Runs in: the guest of a cell that was forked from a template, when its program has ended.

A full finalisation writes to every object, and so copies every page that is shared with the
template. The fast exit leaves out what the program cannot notice. It has two chances:

1. After the last exit function, if nothing is left whose end a program can notice, and the exit
   code is certain.
2. Otherwise the interpreter finalises itself: streams, the program's modules. The fast exit comes
   where it would take apart the modules that it had before the program, on the same conditions.

Where both are refused the interpreter goes on to its plain exit. Nothing here may use what the
program can replace, and no Python frame may run where a trace function would see it.
"""

import os
import sys

from cloche import own_builtins as __builtins__  # noqa: F401
from cloche import protocol
from cloche.quiet_ends import QuietEnds


def _noting_code(member, noted):
    """A descriptor like the `code` of SystemExit, which notes the value when the interpreter
    itself asks for it: then there is no Python frame below.
    """
    frame = sys._getframe

    class Code:
        __slots__ = ()

        def __get__(self, instance, owner=None):
            if instance is None:
                return member
            value = member.__get__(instance, owner)
            try:
                frame(1)
            except ValueError:
                # Another object would stay alive by this list, and its module by that.
                noted.append(value if type(value) in (int, str, type(None)) else ...)
            return value

        def __set__(self, instance, value):
            member.__set__(instance, value)

        def __delete__(self, instance):
            member.__delete__(instance)

    return Code()


def _note_code_of_sys_exit(ctypes, python, library):
    """Has the exception of `sys.exit` made an object at once, as later versions do it, so that the
    interpreter asks it for its code.

    What `sys.exit` is stays as it is: only the function in C behind it is another one.
    """
    # In the object of a function in C, its description follows the head of every object; in the
    # description, the function follows the name.
    word = ctypes.sizeof(ctypes.c_size_t)
    description = ctypes.c_size_t.from_address(id(sys.exit) + 2 * word).value
    function = ctypes.c_size_t.from_address(description + word)
    used = (python.PyErr_Fetch, python.PyErr_NormalizeException, python.PyErr_Restore,
            python.PyType_IsSubtype)
    addresses = [ctypes.cast(one, ctypes.c_void_p).value for one in used]
    library.cloche_wrap_exit.restype = ctypes.c_size_t
    function.value = library.cloche_wrap_exit(
        (ctypes.c_size_t * 6)(function.value, *addresses, id(tuple)))


def _clear(names):
    """Clears a module's dictionary as CPython does it: names with one underscore first."""
    for only_private in (True, False):
        for name in list(names):
            is_private = name[:1] == "_" and name[1:2] != "_"
            if name != "__builtins__" and (is_private or not only_private):
                names[name] = None


class FastExit:
    """Ends a forked interpreter without taking apart what it shares with its template."""

    def __init__(self, python, preloaded, library):
        self.python, self.library, self.leave_now = python, library, library.cloche_leave
        self.modules, self.used = preloaded.modules, preloaded.used
        self.ctypes = preloaded.module("ctypes")
        self.py_object = self.ctypes.py_object
        self.gc, self.itertools, self.operator, self.atexit = map(
            preloaded.module, ("gc", "itertools", "_operator", "atexit"))
        self.ends = QuietEnds(preloaded)
        self.reference = self.ends.reference
        self.main = self.reference(sys.modules["__main__"])
        self.main_name_count = len(vars(self.main()))
        self.is_finalizing, self.objects = sys.is_finalizing, self.gc.get_objects
        self.stdout, self.stderr = sys.stdout, sys.stderr
        self.kinds_of_exit = len(SystemExit.__subclasses__())
        self.asked = []  # the exit codes that the interpreter itself has asked for
        self.seen = []  # what the iterators below have seen
        self.probe = []  # the descriptor of a probe of the warm-up pages
        self.quiet = []  # not empty: no library in C has anything to do at the very end
        self.filters = sys.modules["_warnings"].filters
        self.filter_count = len(self.filters)
        self.bare = bare = frozenset(sys.modules)
        self.is_new = lambda name: name not in bare
        # `site` is the last module from before the program, so the first of those to go; and
        # of its names those with one underscore go first.
        self.site = vars(sys.modules["site"])
        self.site_name = next(name for name in self.site
                              if name[0] == "_" != name[1] and callable(self.site[name]))

    def install(self):
        """Registers both chances behind all exit functions, and notes exit codes."""
        attributes = self.gc.get_referents(SystemExit.__dict__)[0]
        attributes["code"] = _noting_code(attributes["code"], self.asked)
        self.python.PyType_Modified(self.py_object(SystemExit))
        if sys.version_info < (3, 12):
            _note_code_of_sys_exit(self.ctypes, self.python, self.library)
        register, flat = self.atexit.register, self.itertools.chain.from_iterable
        # The last that is registered runs first.
        register(self.seen.extend, flat([*self._look_closer(), *self._prepare_second_chance()]))
        register(any, map(self._first_chance, self._if_untraced((None,))))
        register(self.seen.extend, flat(list(self._look())))

    def stop_at_end(self, descriptor):
        """For the probe of the warm-up pages: says so and stops instead of leaving."""
        self.probe.append(descriptor)

    def rehearse(self):
        """Goes through the end without ending."""
        parts = [*self._look(), *self._look_closer(), *self._prepare_second_chance()]
        self.seen.extend(self.itertools.chain.from_iterable(parts))
        self._exit_code()
        self._is_noticeable()
        for thing in self.objects():
            try:
                self.ends.is_plain(thing)
            except Exception:
                continue  # an object of a preloaded module that is not as usual
        self.seen.clear()

    # Iterators over what the interpreter has to tell. All of them are made before the program runs,
    # and gone through at its end by code in C: no frame of ours is there for a trace function.

    def _call(self, function):
        return self.itertools.starmap(function, ((),))

    def _if_untraced(self, things):
        """The things, unless there is a trace or profile function by then."""
        for tracer in (sys.gettrace, sys.getprofile):
            is_none = map(self.operator.is_, self._call(tracer), (None,))
            things = self.itertools.compress(things, is_none)
        return things

    def _look(self):
        """What is to be seen after all exit functions: the first seven of `seen`."""
        contains, system, names = self.operator.contains, (sys,), vars(self.main())
        thread = sys.modules["_thread"].get_ident()
        yield map(contains, self._call(sys._current_frames), (thread,))
        yield map(id, self.itertools.chain(_get(system, "stdout"), _get(system, "stderr")))
        yield map(hasattr, system, ("last_type",))
        yield map(contains, self.itertools.repeat(names), ("__name__", "__file__", "__cached__"))

    def _look_closer(self):
        """What is only needed where the program has failed or gets its second chance."""
        system, trace = (sys,), "last_traceback"
        yield map(len, map(type.__subclasses__, (SystemExit,)))
        yield map(isinstance, _get(system, "last_value"), (KeyboardInterrupt,))
        yield _get(_get(system, trace), "tb_lasti")
        yield _get(_get(_get(system, trace), "tb_frame"), "f_lasti")
        yield map(id, _get(_get(_get(system, trace), "tb_frame"), "f_back"))
        yield _get(_get(_get(_get(system, trace), "tb_frame"), "f_code"), "co_name")
        yield map(isinstance, _get(system, "last_value"), (SyntaxError,))
        yield map(len, (vars(self.main()),))

    def _prepare_second_chance(self):
        """A weak reference calls us when the first name of `site` goes."""
        last = self._if_untraced((self.site[self.site_name],))
        yield map(self.reference, last, (self._second_chance,))
        # Not to be taken apart, unless something of the program depends on it.
        yield map(sys.modules.pop, self.used, self.itertools.repeat(None))

    # The exit code. None wherever it is not certain.

    def _exit_code(self):
        in_program, out, err, failed, named, *left = self.seen[:7]
        if in_program or (out, err) != (id(self.stdout), id(self.stderr)):
            return None
        # The defaults hold before there was a closer look.
        subclasses, interrupted, *where = self.seen[7:15] or (self.kinds_of_exit, True)
        if subclasses != self.kinds_of_exit or not named:
            return None
        # Until 3.13 the interpreter ends in the middle of its main file then, and has not forgotten
        # its name. Later ones have, but they have always asked for the code.
        if any(left) or self.asked:
            return self._code_of_system_exit()
        if not failed:
            return 0
        # The interpreter forgets the name of the main file when that is through, however it ended.
        # An exception ended it if the program's frame is where its traceback begins.
        begins, ended, below, name, is_syntax, name_count = where or (None,) * 6
        fell = begins is not None and begins == ended and below == id(None) and name == "<module>"
        # A program that cannot be compiled has no frame and has named nothing.
        was_refused = begins is None and is_syntax and name_count == self.main_name_count
        return 1 if (fell or was_refused) and not interrupted else None

    def _code_of_system_exit(self):
        """`sys.exit` or its like has left the main file. Only one code may have been asked for."""
        if len(self.asked) != 1:
            return None
        code = self.asked[0]
        if code is None:
            return 0
        if type(code) is not int:
            return 1 if type(code) is str else None
        return code & 0xFF if -2**63 <= code < 2**63 else 0xFF

    # The first chance: after the last exit function, while everything of the program still exists.

    def _first_chance(self, _):
        try:
            self._leave_if_quiet()
        except BaseException:
            return  # the program has changed what is looked at

    def _leave_if_quiet(self):
        if self.seen[3]:
            self.seen.extend(self.itertools.chain.from_iterable(self._look_closer()))
        code = self._exit_code()
        gc = self.gc
        if code is None or len(sys._current_frames()) > 1 or gc.callbacks or gc.get_debug():
            return
        # What the program has imported comes last. The rest is not looked at, and so not copied.
        new = list(self.itertools.takewhile(self.is_new, reversed(sys.modules)))
        if self._has_own_filters() or len(sys.modules) != len(new) + len(self.bare):
            return
        if all(map(self.ends.is_quiet_module, map(sys.modules.get, new))):
            things = self.objects()
            # The program's module is hidden if any object is, by `gc.freeze`.
            names = vars(self.main())
            if not any(thing is names for thing in things):
                return
            self.quiet.append(True)
            if self.ends.are_all_quiet(things):
                self._leave(code)

    def _has_own_filters(self):
        """Whether the program has changed which warnings are shown: some come at the very end."""
        warnings = sys.modules.get("warnings")
        return len(self.filters) != self.filter_count or (
            warnings is not None and vars(warnings).get("filters") is not self.filters)

    # The second chance: called by a weak reference while modules are taken apart.

    def _second_chance(self, _):
        code = self._exit_code() if self.is_finalizing() else None
        if code is None:
            return
        module = self.main()
        if module is not None:
            _clear(vars(module))
            module = None
        if self._is_noticeable():
            for name in reversed(self.used):
                _clear(vars(self.modules[name]))
            if self._is_noticeable():
                return
        self._leave(code)

    def _is_noticeable(self):
        """Whether an object is left whose end a program could see."""
        return any(map(self.ends.is_noticeable, self.objects()))

    def _leave(self, code):
        try:
            streams = self.stdout, self.stderr
            if all(stream.closed or stream.write_through for stream in streams):
                if self.probe:
                    os.write(self.probe[0], b".")
                    os.kill(os.getpid(), protocol.SIGSTOP)
                if not self.quiet:
                    # A library in C may have something to do or to print at the very end.
                    self.python.exit(code)
                self.leave_now(code)
        except BaseException:
            return


def _get(objects, name):
    """The attribute of each object, or None."""
    return map(getattr, objects, (name,), (None,))
