# each: ctypes.string_at(0)
# each: os.abort()
# each: faulthandler.dump_traceback(); os._exit(0)
# each: faulthandler.dump_traceback_later(0.05, exit=True); __import__("time").sleep(5)
# each: faulthandler._sigfpe()
# each: faulthandler._stack_overflow()
import ctypes
import faulthandler
import os
import sys

print(faulthandler.is_enabled(), len(sys.modules) > 0)
faulthandler.enable()
modules = sys.modules


def inner():
    EACH


inner()
