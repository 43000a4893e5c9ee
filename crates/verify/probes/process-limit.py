# Processes and threads are counted together: 32 here.
import errno
import os
import threading
import time
from probe import check, verdict

children = []
try:
    while len(children) < 64:
        child = os.fork()
        if child == 0:
            time.sleep(10)
            os._exit(0)
        children.append(child)
except OSError as error:
    check(f"{errno.errorcode[error.errno]} after {len(children)}", len(children) < 32)
else:
    check(f"{len(children)} processes", False)
try:
    threading.Thread(target=time.sleep, args=[1], daemon=True).start()
    check("a thread on top", False)
except RuntimeError:
    check("no thread on top", True)
for child in children:
    os.kill(child, 9)
verdict()
