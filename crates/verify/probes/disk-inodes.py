# A million files: the number of inodes is limited like the bytes.
import errno
import os
from probe import check, verdict

os.mkdir("/tmp/many")
made, error = 0, "no error"
try:
    for made in range(1_000_000):
        os.mkdir(f"/tmp/many/{made}")
except OSError as reason:
    error = errno.errorcode[reason.errno]
check(f"{made} directories, then {error}", error == "ENOSPC" and made < 20_000)
verdict()
