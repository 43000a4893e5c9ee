import sys

import beside
from package_beside import value

print(beside.__name__, beside.__file__, beside.__spec__, beside.__cached__, value)
print(beside.stack(), list(sys.modules)[-2:])
import importlib

print(importlib.reload(beside) is beside, importlib.util.find_spec("beside").origin)
beside.fail()
