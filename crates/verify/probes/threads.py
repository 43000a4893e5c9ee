# Threads stop at the limit of 32 and the program goes on.
import threading
from probe import check, verdict

stop = threading.Event()
made = 0
try:
    while made < 64:
        threading.Thread(target=stop.wait, daemon=True).start()
        made += 1
except RuntimeError:
    pass
stop.set()
check(f"{made} threads", made < 32)
verdict()
