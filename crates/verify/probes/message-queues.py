# POSIX queues live in kernel memory. Landlock refuses them too, so the limit itself is looked at.
import errno
import os
import resource
from probe import check, syscall, verdict

made, error = 0, "no error"
try:
    while made < 8:
        syscall("mq_open", b"probe%d" % made, os.O_CREAT | os.O_RDWR, 0o600, None)
        made += 1
except OSError as reason:
    error = errno.errorcode[reason.errno]
limit = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
check(f"limit {limit}", limit == (0, 0))
check(f"{made} queues, then {error}", made == 0)
verdict()
