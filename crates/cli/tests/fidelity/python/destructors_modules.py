import gc
import sys

# When a collection happens decides in which order objects in cycles are destroyed at the end.
gc.disable()
open("one.py", "w").write("""
import atexit, sys
class Loud:
    def __init__(self, name): self.name = name
    def __del__(self): print("gone", self.name, __name__)
a = Loud("one.a")
_b = Loud("one._b")
def f(): return a
registry = []
""")
open("two.py", "w").write("import one\nc = one.Loud('two.c')\none.registry.append(c)\nimport main_is_here\n")
open("main_is_here.py", "w").write("import __main__, one\nx = one.Loud('x')\nkeeps = __main__\n")
import one
import two

mine = one.Loud("mine")
sys.path_hooks.append(lambda path, kept=one.Loud("in a path hook"): 1 / 0)
sys.modules["made up"] = one.Loud("is a module")
import functools


@functools.singledispatch
def dispatch(x):
    pass


dispatch.register(one.Loud, lambda x: x)


@functools.lru_cache
def cached(x):
    return one.Loud("cached")


cached(1)
import signal

signal.signal(signal.SIGUSR1, lambda *a, kept=one.Loud("in a handler"): None)
import threading

threading.local().kept = one.Loud("thread local, gone")
local = threading.local()
local.kept = one.Loud("thread local")
import contextvars

variable = contextvars.ContextVar("variable")
variable.set(one.Loud("context"))
print("the end")
