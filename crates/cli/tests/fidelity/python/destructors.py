import sys
import weakref


class Loud:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("del", self.name, sys is not None and sys.is_finalizing())


class Holder:
    pass


first = Loud("first")
_private = Loud("_private")
second = Loud("second")
cycle = Holder()
cycle.self = cycle
cycle.loud = Loud("in a cycle")
listed = [Loud("listed 0"), Loud("listed 1")]
watched = Holder()
reference = weakref.ref(watched, lambda _: print("weakref callback"))
finalizer = weakref.finalize(cycle, print, "finalize")


def generator():
    try:
        yield 1
    finally:
        print("generator finally")


running = generator()
next(running)
Holder.on_class = Loud("on a class")


def default(a=Loud("default argument")):
    return a


import json

json.kept = Loud("on a library's module")
sys.kept = Loud("on sys")
__builtins__.kept = Loud("on builtins")
print("the end")
