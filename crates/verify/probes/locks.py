# A lock on a file of the image, which every cell reads.
import fcntl
from probe import check, planted, planting, verdict

file = open("/usr/bin/env", "rb")
if planting():
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    planted()
else:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        check("the lock is free here", True)
    except BlockingIOError:
        check("the other's lock is seen here", False)
    verdict()
