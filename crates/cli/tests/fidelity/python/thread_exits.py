# each: sys.exit(3)
# each: raise ValueError("in a thread")
# each: raise SystemExit("text")
# each: os._exit(4)
# each: _thread.interrupt_main()
# each: os.kill(os.getpid(), 15)
# each: threading.main_thread().join()
import _thread
import os
import sys
import threading
import time


def work():
    EACH


thread = threading.Thread(target=work)
thread.start()
if "main_thread" not in "EACH":
    thread.join()
    time.sleep(0.05)
print("main goes on")
