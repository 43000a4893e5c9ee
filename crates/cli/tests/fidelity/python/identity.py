import os
import sys

print(__name__, __file__, __doc__, __package__, __spec__, __loader__.__class__, __builtins__)
print(sys.argv, sys.orig_argv, sys.path)
print(sys.flags, sys.warnoptions, sys._xoptions)
print(sys.executable, sys._base_executable, sys.prefix, sys.base_prefix, sys.exec_prefix)
print(sys.platlibdir, sys.pycache_prefix, sys.dont_write_bytecode, sys.getfilesystemencoding())
print(open("/proc/self/cmdline").read().split("\0"))
print(os.getcwd(), os.readlink("/proc/self/exe"), open("/proc/self/comm").read())
print(sorted(globals()))
print(vars(sys.modules["__main__"]) is globals(), sys.modules["__main__"])
print(__loader__.name, __loader__.path, __annotations__)
print(getattr(sys, "ps1", None), hasattr(sys, "last_type"), sys.gettrace(), sys.getprofile())
print(sys.excepthook, sys.displayhook, sys.unraisablehook, sys.breakpointhook)
print(sys.meta_path, sys.path_hooks[0], len(sys.path_hooks))
print(sys.implementation.cache_tag, sys.version, sys.api_version, sys.hexversion)
print(sys._git, sys.copyright)
