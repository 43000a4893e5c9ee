# Watches of inotify are counted like its instances.
import errno
import os
from probe import check, syscall, verdict

watch = syscall("inotify_init1", 0)
made, error = 0, "no error"
try:
    for made in range(10_000):
        path = b"/tmp/%d" % made
        os.mkdir(path)
        syscall("inotify_add_watch", watch, path, 2)
except OSError as reason:
    error = errno.errorcode[reason.errno]
check(f"{made} watches, then {error}", error == "ENOSPC" and made <= 8192)
verdict()
