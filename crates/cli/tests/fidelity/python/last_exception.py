# each: pass
# each: sys.exit(3)
# each: 1 / 0
# each: raise KeyboardInterrupt
import sys
import traceback

try:
    int("x")
except ValueError:
    sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
traceback.print_last()
EACH
