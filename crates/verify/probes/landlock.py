# What only Landlock forbids: writing to one's own files under /proc.
import os
from probe import open_for, refused, verdict

for name in ["oom_score_adj", "coredump_filter", "comm", "timerslack_ns", "task/self/comm"]:
    path = f"/proc/self/{name}".replace("task/self", f"task/{os.getpid()}")
    refused(name, "EACCES ENOENT", open_for(os.O_WRONLY), path)
verdict()
