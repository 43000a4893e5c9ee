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


def is_joining():
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None and frame.f_code.co_name != "join":
        frame = frame.f_back
    return frame is not None


def work():
    # The main thread is where it waits, so that a traceback is the same every time.
    while joins and not is_joining():
        time.sleep(0.001)
    time.sleep(0.05)
    EACH


joins = "main_thread" not in "EACH"
thread = threading.Thread(target=work)
thread.start()
if joins:
    thread.join()
    time.sleep(0.05)
print("main goes on")
