# A signal to everyone reaches only its own.
import os
import signal
import time
from probe import check, forks, verdict

signal.signal(signal.SIGTERM, signal.SIG_IGN)
children = forks(3)
if children is None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(30)
time.sleep(0.1)
os.kill(-1, signal.SIGTERM)
ended = [os.WTERMSIG(os.waitpid(child, 0)[1]) for child in children]
check(f"its own children: {ended}", ended == [signal.SIGTERM] * 3)
os.kill(1, signal.SIGKILL)
time.sleep(0.1)
check("pid 1 is still there", os.path.exists("/proc/1"))
verdict()
