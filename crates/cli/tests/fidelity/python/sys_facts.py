import gc
import locale
import sys
import threading
import time
import warnings

print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile())
print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks, gc.garbage)
print(warnings.filters, warnings._onceregistry, warnings.defaultaction, sys.warnoptions)
print(sys.stdin, sys.stdout, sys.stderr, sys.stdout is sys.__stdout__)
print(sys.stdout.line_buffering, sys.stdout.write_through, sys.stderr.line_buffering)
print(type(sys.stdout.buffer), sys.stdin.buffer, sys.stdin.closed)
print(locale.getlocale(), locale.getpreferredencoding(), locale.setlocale(locale.LC_ALL))
print(time.tzname, time.timezone, threading.stack_size(), sys.thread_info)
print(sys.get_asyncgen_hooks(), sys.get_coroutine_origin_tracking_depth())
print(sys.float_info.max, sys.int_info, sys.get_int_max_str_digits(), sys.hash_info)
print(sys.path_importer_cache.keys() - {None} >= {"/home/baponi"}, sys.is_finalizing())
print(sorted(sys.path_importer_cache))
print(sys.getrefcount(object()), sys.getdlopenflags(), sys.tracebacklimit if hasattr(sys, "tracebacklimit") else "")
