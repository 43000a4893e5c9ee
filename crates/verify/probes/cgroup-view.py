# The control groups: its own place is the root of all it sees, and there is no file to write.
import os
from probe import check, refused, verdict

with open("/proc/self/cgroup") as lines:
    paths = {line.rstrip().split(":", 2)[2] for line in lines}
check(f"paths {sorted(paths)}", paths == {"/"})
refused("the hierarchy", "ENOENT EACCES", lambda: os.listdir("/sys/fs/cgroup"))
for name in ["cgroup.procs", "memory/memory.limit_in_bytes", "memory.max", "pids/tasks"]:
    refused(name, "ENOENT EACCES", lambda: open(f"/sys/fs/cgroup/{name}", "w"))
verdict()
