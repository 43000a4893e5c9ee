# A POSIX message queue under a known name.
import os
from probe import planted, planting, refused, syscall, verdict

NAME = os.environ["PROBE_NONCE"].encode()
if planting():
    try:
        syscall("mq_open", NAME, os.O_CREAT | os.O_RDWR, 0o666, None)
    except OSError:
        # None to be had is as good as none to be found.
        pass
    planted()
else:
    refused("the other's queue", "ENOENT", syscall, "mq_open", NAME, os.O_RDWR, 0, None)
    verdict()
