# System V shared memory, semaphores and queues under a known key.
import os
from probe import check, planted, planting, refused, syscall, verdict

KEY, CREATE = 0x0C10C4E, 0o1000
if planting():
    made = syscall("shmget", KEY, 4096, CREATE | 0o666)
    syscall("semget", KEY, 1, CREATE | 0o666)
    syscall("msgget", KEY, CREATE | 0o666)
    planted(made)
else:
    refused("shared memory", "ENOENT", syscall, "shmget", KEY, 0, 0)
    refused("semaphores", "ENOENT", syscall, "semget", KEY, 0, 0)
    refused("queue", "ENOENT", syscall, "msgget", KEY, 0)
    for kind in ["shm", "sem", "msg"] if os.path.exists("/proc/sysvipc") else []:
        with open(f"/proc/sysvipc/{kind}") as lines:
            check(f"no {kind} listed", len(list(lines)) == 1)
    verdict()
