"""Runs in: a template, and in each cell that is forked from it until its program starts.

A template waits when CPython asks `sys.path_hooks` what kind of file its main file is. `site` is
through by then, so little is left between a job and its program. The library `template.so` (built
from the jail's core) forks the cells and reads their jobs.
"""

import os
import sys

from cloche import job, protocol, usual_programs, warm_pages
from cloche import own_builtins as __builtins__  # noqa: F401
from cloche.exit import FastExit
from cloche.preload import Preloaded

# What the runtime itself imports in a template.
_OWN_IMPORTS = ["ctypes", "gc", "weakref", "itertools", "select", "_operator"]
# How often the pages that every program needs are measured.
_MEASUREMENTS = 4
# The most ranges of pages that are mapped ahead in each cell.
_MOST_RANGES = 4096
# The bit of the library's answer that says that a file of the job may be an archive.
_MAY_BE_ARCHIVE = 1 << 63


def install(home, preload, runtime):
    """Replaces the last entry of `sys.path_hooks`: when CPython probes the main file, the hook
    becomes the template's loop. It returns in the cells.
    """
    *others, last = sys.path_hooks

    def probe(path):
        if [path] == sys.argv[:1]:
            sys.path_hooks[-1] = last
            template = Template(home, preload, runtime)
            template.serve()
            if template.enter_cell():
                # The other hooks answered before the main file existed.
                for hook in others:
                    try:
                        return hook(path)
                    except ImportError:
                        pass
            # What the last hook says of a file. It would look at the file for that.
            raise ImportError("only directories are supported", path=path)
        return last(path)

    sys.path_hooks[-1] = probe


class Template:
    """An interpreter with modules imported ahead, from which cells are forked."""

    def __init__(self, home, preload, runtime):
        known = set(sys.path_importer_cache)
        self.preloaded = preloaded = Preloaded()
        preloaded.load([*_OWN_IMPORTS, *preload])
        _require_own_imports(preloaded)
        self.gc, self.select, self.ctypes = map(preloaded.module, ("gc", "select", "ctypes"))
        ctypes = self.ctypes
        self.library = ctypes.PyDLL(os.path.join(home, protocol.TEMPLATE_LIBRARY))
        self.python = ctypes.PyDLL(None)
        # Bound once, so that a cell makes no new object for them.
        self.track = self.python.PyObject_GC_Track
        self.after_fork = self.python.PyOS_AfterFork_Child
        self.wait = self.library.cloche_wait
        self.wait.restype = ctypes.c_size_t
        self.native_id = sys.modules["_thread"].get_native_id
        self.thread_id = _find_thread_id(ctypes, self.native_id())
        self.fast_exit = FastExit(self.python, preloaded, self.library)
        self.fast_exit.install()
        preloaded.put_finders_away(known)
        warm_pages.rehearse(self.gc, self.fast_exit)
        self.fork_hooks = _trim_fork_hooks(self.gc, preloaded)
        self.given, self.buffers = _prepare_given(ctypes)
        self.hot = (ctypes.c_size_t * (2 * _MOST_RANGES))()
        self.has_pages = True  # until it is known better; a probe goes the way of a cell that has
        # The module of the program must not be frozen: it is collected like any other at the end.
        main = sys.modules["__main__"]
        self.main = [ctypes.py_object(main), ctypes.py_object(vars(main))]
        for thing in self.main:
            self.python.PyObject_GC_UnTrack(thing)
        self.gc.freeze()
        # Taking shared objects apart would copy their pages. And `site` must exist at the end.
        for kept in (self, sys.modules["site"], preload, *runtime):
            self.python.Py_IncRef(ctypes.py_object(kept))
        # Once without a fork, so that everything is looked up and made that is needed for one.
        self.python.PyOS_BeforeFork()
        self.after_fork()

    def serve(self):
        """Forks a cell for each request. Returns in the cells, and in the probe of the warm-up
        pages, which goes the same way as a cell.
        """
        # Where a program's objects are made depends on what each measurement leaves behind.
        needed, usual = (set(), set()), (set(), set())
        for program in (*[usual_programs.LEAST] * _MEASUREMENTS, *usual_programs.USUAL):
            pages = warm_pages.measure(self.select, self.fast_exit, program)
            if pages is None:
                return
            for kinds in (needed, usual)[program is not usual_programs.LEAST:]:
                kinds[0].update(pages[0])
                kinds[1].update(pages[1])
            self.note_pages(needed, usual)
            self.gc.freeze()
        os.write(protocol.JOB_FD, protocol.READY.encode())
        self.python.PyOS_BeforeFork()
        self.library.cloche_serve(protocol.FORK_FD, self.given)
        # From here on this is the guest of a new cell, with every wall up.
        if self.thread_id is not None:
            self.thread_id.value = self.native_id()
        self.after_fork()

    def note_pages(self, needed, usual):
        """Has the library map these pages in each cell, as many as there is space for: those that
        every program writes to and reads, then those of usual programs.
        """
        usual = usual[0] - needed[0], warm_pages.thin_pages(usual[1], needed[1])
        needed = needed[0], warm_pages.thin_pages(needed[1])
        self.has_pages = any(needed)
        ranges, ends = [], []
        for pages in (*needed, *usual):
            ranges += warm_pages.join_pages(pages)
            ends.append(min(len(ranges), len(self.hot)) // 2)
        del ranges[len(self.hot):]
        self.hot[:len(ranges)] = ranges
        self.given[protocol.SETUP_RANGES] = self.ctypes.addressof(self.hot)
        self.given[protocol.SETUP_WRITTEN], self.given[protocol.SETUP_COUNT] = ends[:2]
        self.given[protocol.SETUP_USUAL_WRITTEN] = ends[2] - ends[1]
        self.given[protocol.SETUP_USUAL_COUNT] = ends[3] - ends[1]

    def enter_cell(self):
        """Takes the job of a cell. Returns whether a file of it may be an archive."""
        for functions, all_of_them in self.fork_hooks:
            functions[:] = all_of_them
        for thing in self.main:
            if not self.gc.is_tracked(thing.value):
                self.track(thing)
        # The program's module must end when the interpreter lets go of it.
        self.main = None
        _reseed(self.preloaded.modules)
        if not self.has_pages and not self.select.select([protocol.JOB_FD], [], [], 0)[0]:
            # No job yet: there is time to have the pages copied.
            warm_pages.rehearse(self.gc, self.fast_exit)
        answer = self.wait(self.given)
        others = answer & _MAY_BE_ARCHIVE - 1
        if others:
            self.apply_variables(others - 1)
        return answer != others

    def apply_variables(self, length):
        """Sets the variables that the library has put into the buffer, and looks for packages."""
        strings = self.ctypes.string_at(self.given[protocol.SETUP_BUFFER], length)
        job.set_variables(job.split_strings(strings))
        if job.redo_start():
            sys.modules["site"].execusercustomize()


def _require_own_imports(preloaded):
    """Ends where a module is missing, as in an interpreter that was built without libffi."""
    for name in _OWN_IMPORTS:
        if name not in preloaded.modules and name not in sys.modules:
            message = "a template needs the module %s, which this interpreter lacks\n" % name
            os.write(2, message.encode())
            os._exit(1)


def _find_thread_id(ctypes, thread_id):
    """The word in which musl keeps the id of the main thread, which its own fork would update. None
    with another C library: the kernel writes it there.
    """
    libc = ctypes.PyDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        return None
    libc.pthread_self.restype = ctypes.c_size_t
    address = libc.pthread_self()
    # Behind the pointers at the beginning of the description of a thread.
    for offset in range(24, 128, 4):
        word = ctypes.c_int.from_address(address + offset)
        if word.value == thread_id:
            return word
    os.write(2, b"a template does not know where this C library keeps the id of a thread\n")
    os._exit(1)


def _prepare_given(ctypes):
    """What the library is given, and the buffers to which that points."""
    variables = job.encode_strings(map(b"=".join, os.environb.items()))
    packages = os.fsencode(sys.modules["site"].getusersitepackages())
    sizes = variables, protocol.EXEC_BYTES, packages
    buffers = [ctypes.create_string_buffer(size) for size in sizes]
    given = (ctypes.c_size_t * protocol.SETUP_WORDS)()
    indices = protocol.SETUP_VARIABLES, protocol.SETUP_BUFFER, protocol.SETUP_PACKAGES
    for index, buffer in zip(indices, buffers):
        given[index] = ctypes.addressof(buffer)
    given[protocol.SETUP_VARIABLES_LEN] = len(variables)
    given[protocol.SETUP_BUFFER_LEN] = protocol.EXEC_BYTES
    try:
        libc = ctypes.PyDLL(None)
        offset = ctypes.c_ssize_t.in_dll(libc, "__rseq_offset").value
        if ctypes.c_uint.in_dll(libc, "__rseq_size").value:
            given[protocol.SETUP_RSEQ_OFFSET] = offset % 2**64
            given[protocol.SETUP_RSEQ_LEN] = 32
    except ValueError:
        pass  # a libc without rseq
    return given, buffers


def _trim_fork_hooks(gc, preloaded):
    """Takes functions out of the lists of `os.register_at_fork` that a template's fork can do
    without. Returns the lists, each with what belongs into it again in a cell.

    `threading` and `logging` make all their locks anew, in case another thread held one: a template
    has one thread. `random` seeds itself: here that is done when a program imports it.
    """
    def marker():
        pass

    left_out = ["logging", "threading"]
    if "random" in preloaded.waiting:
        left_out.append("random")
        seed = preloaded.waiting["random"].seed
        preloaded.effects.setdefault("random", []).append((seed, (), {}))

    os.register_at_fork(before=marker, after_in_child=marker, after_in_parent=marker)
    lists = [found for found in gc.get_referrers(marker)
             if type(found) is list and found[-1:] == [marker]]
    hooks = []
    for functions in lists:
        functions.remove(marker)
        hooks.append((functions, functions[:]))
        functions[:] = [function for function in functions
                        if getattr(function, "__module__", None) not in left_out]
    return hooks


def _reseed(modules):
    """Changes what a fork leaves the same in all cells, which also have the same pid."""
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
