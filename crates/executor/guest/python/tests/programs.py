"""Runs in: test. Programs that must go the same way however their interpreter was started."""

_LOUD = "class Loud:\n    def __del__(self): print('gone')\n"
_EXITS = "import atexit\natexit.register(print, 'exit function')\n"

_DATABASE = """import os, sqlite3
connect = sqlite3.connect
def write(database):
    database.execute('create table t (n)')
    database.execute('insert into t values (1)')
    print(database.total_changes)
"""

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
    ("syntax error", True, "def f(:\n"),
    ("indentation error", True, "if True:\nprint(1)\n"),
    ("forged syntax error", False, "import sys\nsys.last_type = SyntaxError\n"
     "sys.last_value, sys.last_traceback = SyntaxError('no'), None"),
    ("syntax error of text", True, "exec('def f(:')"),
    ("forged syntax error after an import", False, "import sys, code\n"
     "code.InteractiveInterpreter().runsource('f(:', symbol='exec')\nprint(sys.last_type)"),
    ("database in memory", True, _DATABASE + "d = connect(':memory:')\nwrite(d)"),
    ("database in memory, closed", True, _DATABASE + "d = connect(':memory:')\nd.close()"),
    ("database in a file", False, _DATABASE + "d = connect('kept.db')\nwrite(d)"),
    ("database in a file, closed", True, _DATABASE + "d = connect('file.db')\nd.close()"),
    ("database in a file, closed but for a statement", False,
     _DATABASE + "d = connect('file.db')\nc = d.execute('select 1 union select 2')\n"
     "next(c)\nd.close()"),
    ("database in a file that was removed", False,
     _DATABASE + "d = connect('gone.db')\nwrite(d)\nos.unlink('gone.db')"),
    ("attached database", False, _DATABASE + "d = connect(':memory:')\nwrite(d)\n"
     "d.execute('attach ? as other', ('attached.db',))"),
    ("database and another file", False,
     _DATABASE + "d = connect(':memory:')\nwrite(d)\nf = os.open('main.py', 0)"),
    ("own database with a destructor", False, _DATABASE + "class Connection(sqlite3.Connection):\n"
     "    def __del__(self): print('gone')\nd = Connection(':memory:')\nwrite(d)"),
    ("database that looks like one of the library", False, _DATABASE + _LOUD
     + "Loud.__module__, Loud.__name__ = 'sqlite3', 'Connection'\nd = Loud()"),
    ("database with other warnings", None, _DATABASE + "import warnings\n"
     "d = connect(':memory:')\nwarnings.filters = [('always', None, Warning, None, 0)]"),
    ("exit functions", True, _EXITS + "print('body')"),
    ("failing exit function", True, "import atexit\natexit.register(lambda: 1 / 0)"),
    ("destructor", False, _LOUD + "kept = Loud()"),
    ("destructor after failure", False, _LOUD + "kept = Loud()\n1 / 0"),
    ("weak callback", True, "import weakref\nclass C: pass\nc = C()\n"
     "r = weakref.finalize(c, print, 'gone')"),
    ("thread", True, "import threading\nt = threading.Thread(target=print, args=('thread',))\n"
     "t.start()"),
    ("own exit", False, "import sys\nclass Own(SystemExit):\n    pass\nraise Own(4)"),
    ("class with a destructor", True, _LOUD),
    ("class with a destructor whose objects are hidden", False,
     "class Loud:\n    __slots__ = ()\n    def __del__(self): print('gone')\nkept = Loud()"),
    ("class of classes with a destructor", False, "class Kind(type):\n"
     "    def __del__(self): print('gone')\nclass Made(metaclass=Kind): pass"),
    ("hidden destructor", False, _LOUD + "import gc\nkept = Loud()\ngc.freeze()"),
    ("collector", True, "import gc\nprint(gc.isenabled())"),
    ("closed file", True, "f = open('closed.txt', 'w')\nf.write('text')\nf.close()"),
    ("file that is read", True, "f = open('main.py')\nprint(f.readline())"),
    ("open file", False, "f = open('open.txt', 'w')\nf.write('text')"),
    ("open file of bytes", False, "f = open('bytes.txt', 'r+b' if 0 else 'wb')\nf.write(b'b')"),
    ("open file that is detached", False, "f = open('detached.txt', 'w')\nf.write('text')\n"
     "g = f.detach()"),
    ("own stream", False, "import io\nclass Own(io.StringIO):\n"
     "    def close(self): print('closed')\nf = Own()"),
    ("stream above an own one", False, "import io\nclass Own(io.RawIOBase):\n"
     "    def readable(self): return True\n    def close(self): print('closed')\n"
     "f = io.BufferedReader(Own())"),
    ("text in memory", True, "import io\nf = io.StringIO()\nprint('text', file=f)\n"
     "g = io.TextIOWrapper(io.BytesIO())\ng.write('text')"),
    ("generator", True, "def count():\n    n = 0\n    while True:\n        yield n\n"
     "        n += 1\nc = count()\nprint(next(c))"),
    ("generator that cleans up", False, "def count():\n    try:\n        yield 1\n"
     "    finally:\n        print('clean')\nc = count()\nprint(next(c))"),
    ("generator that catches its end", False, "def count():\n    try:\n        yield 1\n"
     "    except GeneratorExit:\n        print('clean')\nc = count()\nprint(next(c))"),
    ("generator that has not begun", True, "def count():\n    try:\n        yield 1\n"
     "    finally:\n        print('clean')\nc = count()"),
    ("generator in a context", False, "import contextlib\n@contextlib.contextmanager\n"
     "def own():\n    yield\n    print('left')\ndef count():\n    with own():\n        yield 1\n"
     "c = count()\nprint(next(c))"),
    ("generator above another", False, "class Own:\n    def __iter__(self): return self\n"
     "    def __next__(self): return 1\n    def close(self): print('closed')\n"
     "def count():\n    yield from Own()\nc = count()\nprint(next(c))"),
    ("coroutine that is not awaited", False, "async def f(): pass\nc = f()"),
    ("weak collections", True, "import weakref\nclass C: pass\nc = C()\ns = weakref.WeakSet([c])\n"
     "v = weakref.WeakValueDictionary(a=c)\nk = weakref.WeakKeyDictionary({c: 1})"),
    ("weak dictionary with own keys", False, "import weakref\nclass C: pass\nc = C()\n"
     "v = weakref.WeakValueDictionary({C(): c})"),
    ("module of its own", True, "import sys, types\nsys.modules['own'] = types.ModuleType('own')"),
    ("type hints", True, "from typing import Dict, List, Optional\n"
     "def f(x: List[int]) -> Optional[Dict[str, int]]: return None\nprint(f([1]))"),
    ("class of classes with a destructor as a module", False, "import sys\nclass Kind(type):\n"
     "    def __del__(self): print('gone')\nclass Own(metaclass=Kind): pass\n"
     "sys.modules['own'] = Own"),
    ("child that has ended", True, "import subprocess, sys\n"
     "p = subprocess.Popen(['true'])\nprint(p.wait())"),
    ("child that was not waited for", False, "import subprocess\n"
     "p = subprocess.Popen(['sleep', '0.01'])"),
    ("closed sockets", True, "import socket\na, b = socket.socketpair()\na.close()\n"
     "b.close()"),
    ("open socket", False, "import socket\na, b = socket.socketpair()\na.close()"),
    ("own socket", False, "import socket\nclass Own(socket.socket):\n"
     "    def __del__(self): print('gone')\ns = Own(socket.AF_UNIX)"),
    ("log", True, "import logging\nlogging.basicConfig(level=10)\nlogging.info('text')"),
    ("ended threads", True, "import threading\nt = threading.Thread(target=print, args=(1,))\n"
     "t.start()\nt.join()\nprint(threading.active_count())"),
    ("thread pool", True, "from concurrent.futures import ThreadPoolExecutor\n"
     "with ThreadPoolExecutor(2) as pool:\n    print(list(pool.map(abs, [-1, -2])))"),
    ("unit tests", True, "import io, unittest\nclass T(unittest.TestCase):\n"
     "    def test(self): self.assertTrue(1)\nrunner = unittest.TextTestRunner(io.StringIO())\n"
     "print(unittest.main(exit=False, argv=['t'], testRunner=runner).result)"),
    ("hard exit", False, "import os\nos._exit(5)"),
    ("child", None, "import os, sys\nif os.fork() == 0: sys.exit(3)\n"
     "print(os.waitstatus_to_exitcode(os.wait()[1]))"),
    ("traced", False, "import sys\nsys.settrace(lambda *a: None)\nprint('traced')"),
    ("replaced builtins", True, "import builtins\nbuiltins.len = None\nbuiltins.map = None"),
]
