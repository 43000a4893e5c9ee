"""Runs in: test. Programs that must go the same way however their interpreter was started."""

_LOUD = "class Loud:\n    def __del__(self): print('gone')\n"
_EXITS = "import atexit\natexit.register(print, 'exit function')\n"

# The name of each, whether it takes the fast exit right after its last exit function (None: that
# depends on the version of CPython), its source.
PROGRAMS = [
    ("prints", True, "print(1)"),
    ("empty", True, ""),
    ("imports", True, "import json, random, re\nprint(json.dumps([re.sub('a', 'b', 'a')]))"),
    ("modules", True, "import sys\nprint(*sys.modules)"),
    ("paths", True, "import sys\nprint(sys.path, *sys.path_importer_cache)"),
    ("environment", True, "import os\nprint(dict(os.environ), os.getcwd())"),
    ("frames", True, "import sys\nf = sys._getframe()\nprint(f.f_back, f.f_code.co_filename)"),
    ("attributes", True, "print(sorted(globals()), __file__, __spec__)"),
    ("exits with a number", True, "import sys\ndef end(): sys.exit(7)\nend()"),
    ("exits with none", True, "raise SystemExit"),
    ("exits with a text", True, "import sys\ndef end(): sys.exit('text')\nend()"),
    ("exits far", True, "import sys\ndef end(): sys.exit(256 + 3)\nend()"),
    ("exit caught", True, "import sys\ntry: sys.exit(4)\n"
     "except SystemExit as e: print(repr(e), e.args)"),
    ("exits with too much", True, "import sys\ntry: sys.exit(1, 2)\n"
     "except TypeError as e: print(e)"),
    ("exits with a tuple", None, "import sys\nsys.exit((1, 2))"),
    ("exits with a tuple of one", None, "import sys\nsys.exit((5,))"),
    ("exits with a tuple of none", None, "import sys\nsys.exit(())"),
    ("fails", True, "print('before')\n1 / 0"),
    ("fails deep", True, "def f(n):\n    return f(n - 1) if n else int('x')\nf(3)"),
    ("syntax error", False, "def f(:\n"),
    ("exit functions", True, _EXITS + "print('body')"),
    ("failing exit function", True, "import atexit\natexit.register(lambda: 1 / 0)"),
    ("destructor", False, _LOUD + "kept = Loud()"),
    ("destructor after failure", False, _LOUD + "kept = Loud()\n1 / 0"),
    ("weak callback", False, "import weakref\nclass C: pass\nc = C()\n"
     "r = weakref.finalize(c, print, 'gone')"),
    ("thread", False, "import threading\nt = threading.Thread(target=print, args=('thread',))\n"
     "t.start()"),
    ("own exit", False, "import sys\nclass Own(SystemExit):\n    pass\nraise Own(4)"),
    ("hard exit", False, "import os\nos._exit(5)"),
    ("child", None, "import os, sys\nif os.fork() == 0: sys.exit(3)\n"
     "print(os.waitstatus_to_exitcode(os.wait()[1]))"),
    ("traced", False, "import sys\nsys.settrace(lambda *a: None)\nprint('traced')"),
    ("replaced builtins", True, "import builtins\nbuiltins.len = None\nbuiltins.map = None"),
]
