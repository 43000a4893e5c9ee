# each: raise SystemExit
# each: raise SystemExit(2, 3)
# each: raise Sub(4)
# each: raise Overrides(4)
# each: raise Property(4)
# each: raise Late(4)
# each: raise Raising(4)
# each: exit(5)
# each: quit("bye")
# each: os._exit(6)
# each: os._exit(-1)
# each: exec("sys.exit(7)")
# each: __import__("runpy").run_path("other.py")
# each: (lambda: (yield))().throw(SystemExit(8))
# each: sys.excepthook = None; 1 / 0
# each: sys.excepthook = lambda *a: print("hook", a[1]); 1 / 0
# each: sys.excepthook = lambda *a: sys.exit(11); 1 / 0
# each: sys.excepthook = lambda *a: 1 / 0; int("x")
# each: del sys.excepthook; 1 / 0
# each: error = SystemExit(1); error.code = 9; raise error
# each: error = SystemExit(1); del error.code; raise error
# each: os.abort()
# each: os.kill(os.getpid(), 9)
# each: os.kill(os.getpid(), 15)
# each: os.kill(os.getpid(), 11)
# each: os.kill(os.getpid(), 2)
# each: raise KeyboardInterrupt
# each: raise KeyboardInterrupt("text") from ValueError()
# each: class K(KeyboardInterrupt): pass; raise K
# each: raise BaseException("base")
# each: raise GeneratorExit
# each: raise MemoryError
# each: raise RecursionError("deep")
# each: sys.stdout = None; print(1); 1 / 0
# each: sys.stderr = None; 1 / 0
# each: del sys.stdout, sys.stderr; 1 / 0
# each: sys.last_type = ValueError
# each: sys.last_type = ValueError; sys.exit(12)
# each: sys.modules.clear()
# each: sys.modules.clear(); sys.exit(13)
# each: del sys.modules["__main__"]
# each: sys.modules = {}
# each: import gc; gc.disable(); sys.exit(14)
# each: import gc; gc.unfreeze(); sys.exit(15)
# each: sys.meta_path.clear(); sys.path.clear()
# each: import builtins; builtins.print = None
import os
import sys


class Sub(SystemExit):
    pass


class Overrides(SystemExit):
    code = 21


class Property(SystemExit):
    @property
    def code(self):
        return 22


class Late(SystemExit):
    pass


Late.code = 23


class Raising(SystemExit):
    @property
    def code(self):
        raise ValueError("no code")


class Noticed:
    def __del__(self):
        print("cleaned up")


noticed = Noticed()
with open("other.py", "w") as other:
    other.write("import sys\nsys.exit('from another file')\n")
try:
    EACH
finally:
    if sys.stdout:
        print("finally")
