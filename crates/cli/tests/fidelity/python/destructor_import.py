# each: import json; print(json.dumps(1))
# each: import colorsys; print(colorsys)
# each: import os; print(os.getcwd())
# each: import __main__; print(__main__)
# each: print(open("main.py").readline())
# each: import threading; threading.Thread(target=print, args=(1,)).start()
# each: import sys; print(sys.modules is not None, sys.path, sys.meta_path)
# each: sys.exit(3)
# each: import atexit; atexit.register(print, "too late")
# each: raise KeyboardInterrupt
# each: print(sys, sys.stdout, sys.stderr, os)
# each: os.write(1, b"raw"); os._exit(9)
# each: os.kill(os.getpid(), 15)
# each: signal.signal(15, signal.SIG_IGN)
# each: warnings.warn("late")
# each: logging.error("late")
# each: print(__file__, __name__, __builtins__ is not None)
# each: print(threading.current_thread().name, len(threading.enumerate()))
# each: print(subprocess.run(["echo", "late"], capture_output=True))
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings


class Late:
    def __del__(self):
        EACH


late = Late()
cycle = [late]
cycle.append(cycle)
