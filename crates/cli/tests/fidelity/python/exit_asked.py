import _thread
import atexit
import operator
import time

# Others who ask an exception for its code do not end the program with it.
atexit.register(operator.attrgetter("code"), SystemExit(5))
_thread.start_new_thread(getattr, (SystemExit(6), "code"))
time.sleep(0.05)
print("ends with 0")
