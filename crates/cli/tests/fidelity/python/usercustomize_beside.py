import sys

print("usercustomize" in sys.modules, "sitecustomize" in sys.modules)
import usercustomize

print(usercustomize.__file__)
