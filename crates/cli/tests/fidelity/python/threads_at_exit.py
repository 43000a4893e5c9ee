import atexit
import threading
import time


def slow(name, wait):
    time.sleep(wait)
    print(name)


atexit.register(print, "atexit")
threading._register_atexit(print, "threading atexit")
threading.Thread(target=slow, args=("joined", 0.1)).start()
threading.Thread(target=slow, args=("daemon, never printed", 9), daemon=True).start()
threading.Thread(target=slow, args=("joined later", 0.15)).start()
print("main ends", threading.active_count())
