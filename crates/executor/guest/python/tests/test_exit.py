"""Runs in: test. The fast exit: same code and output as the plain one, taken where it may be."""

import os
import subprocess
import sys
import tempfile
import unittest

from harness import ARCHIVE, LIBRARY, PATIENCE, run_plain, without_addresses
from programs import PROGRAMS

# Installs the fast exit at the moment at which a template does, and notes when it is taken.
_INSTALL = """
import os, sys
sys.path.insert(0, %r)
from cloche.exit import FastExit
from cloche.preload import Preloaded
sys.path.pop(0)
runtime = [sys.modules.pop(name) for name in list(sys.modules) if name.startswith("cloche")]
for entry in [entry for entry in sys.path_importer_cache if entry.startswith(%r)]:
    del sys.path_importer_cache[entry]
last = sys.path_hooks[-1]

def leave(code):
    os.write(9, b"second" if sys.is_finalizing() else b"first")
    os._exit(code)

def install(path):
    global fast_exit
    sys.path_hooks[-1] = last
    preloaded, known = Preloaded(), set(sys.path_importer_cache)
    names = ["ctypes", "gc", "weakref", "itertools", "select", "_operator", "json", "random"]
    preloaded.load([*names, "re", "threading", "logging", "subprocess", "typing"])
    ctypes, gc = map(preloaded.module, ("ctypes", "gc"))
    python = ctypes.PyDLL(None)
    library = ctypes.PyDLL(%r)
    library.cloche_leave = leave
    fast_exit = FastExit(python, preloaded, library)
    fast_exit.install()
    preloaded.put_finders_away(known)
    fast_exit.rehearse()
    main = sys.modules["__main__"]
    program = [ctypes.py_object(main), ctypes.py_object(vars(main))]
    for thing in program:
        python.PyObject_GC_UnTrack(thing)
    gc.freeze()
    for thing in program:
        if not gc.is_tracked(thing.value):
            python.PyObject_GC_Track(thing)
    for kept in (fast_exit, python, library, sys.modules["site"], install, leave, *runtime):
        python.Py_IncRef(ctypes.py_object(kept))
    return last(path)

sys.path_hooks[-1] = install
raise ImportError(name="usercustomize")
""" % (ARCHIVE, ARCHIVE, LIBRARY)


def run_with_fast_exit(program):
    """The exit code, the output, the errors, and which chance was taken."""
    with tempfile.TemporaryDirectory() as made:
        directory = os.path.realpath(made)
        main, site = os.path.join(directory, "main.py"), os.path.join(directory, "site")
        os.mkdir(site)
        for path, source in ((main, program), (os.path.join(site, "usercustomize.py"), _INSTALL)):
            with open(path, "w") as file:
                file.write(source)
        ours, theirs = os.pipe()
        done = subprocess.run(
            [sys.executable, main], preexec_fn=lambda: os.dup2(theirs, 9),
            cwd=directory, env={"PATH": os.environ["PATH"], "PYTHONPATH": site,
                                "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1",
                                "LANG": "C.UTF-8"},
            pass_fds=[9], timeout=PATIENCE, capture_output=True, check=False)
        os.close(theirs)
        with open(ours) as notes:
            chance = notes.read()
        texts = (without_addresses(text.decode().replace(directory, "HOME"))
                 for text in (done.stdout, done.stderr))
        return (done.returncode, *texts), chance


class FastExits(unittest.TestCase):
    # These print what the harness itself changes.
    HARNESS = ("paths", "environment", "modules")

    def test_it_ends_programs_as_the_plain_exit_does(self):
        for name, _, program in PROGRAMS:
            if name not in self.HARNESS:
                with self.subTest(name):
                    self.assertEqual(run_with_fast_exit(program)[0], run_plain(program))

    def test_it_is_taken_where_it_is_allowed_and_only_there(self):
        for name, is_fast, program in PROGRAMS:
            if is_fast is not None:
                with self.subTest(name):
                    chance = run_with_fast_exit(program)[1]
                    self.assertEqual(chance == "first", is_fast, chance)


if __name__ == "__main__":
    unittest.main()
