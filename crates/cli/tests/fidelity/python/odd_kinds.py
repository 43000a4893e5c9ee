import builtins
import sys
import types


class Kind(type):
    def __eq__(cls, other):
        print("compared")
        return False

    def __getattribute__(cls, name):
        return type.__getattribute__(cls, name)


class Odd(metaclass=Kind):
    pass


odd = Odd()
module = types.ModuleType("odd_module")
module.__spec__ = types.SimpleNamespace(origin=3, name=[])
sys.modules["odd_module"] = module
for name in ("len", "all", "any", "map", "type", "id", "list", "reversed"):
    original = getattr(builtins, name)
    setattr(builtins, name, lambda *a, o=original, n=name: (sys.stdout.write(n + " called\n"), o(*a))[1])
sys.stdout.write("done\n")
