import sys
import types

namespace = {}
exec("def f(): return __name__ if '__name__' in globals() else None\nx = 1", namespace)
print(sorted(namespace), namespace["f"](), eval("x + 1", namespace))
code = compile("y = 2", "made-up.py", "exec")
exec(code)
print(y, code.co_filename, eval("__name__"), sorted(locals())[:3] == sorted(globals())[:3])
module = types.ModuleType("made")
exec("z = 3", vars(module))
print(module.z, module)
exec("raise ValueError('inside')")
