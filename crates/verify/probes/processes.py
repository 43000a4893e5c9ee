# It sees its own processes, and the host's are neither there nor to be signalled.
import os
from probe import check, refused, verdict

there = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
check(f"processes {there}", set(there) <= {1, os.getpid()})
check(f"own pid {os.getpid()}", os.getpid() < 100)
host = int(os.environ["PROBE_HOST_PID"])
if host > 300:
    refused("signal to the host", "ESRCH EPERM", os.kill, host, 0)
    refused("the host's process", "ENOENT", os.stat, f"/proc/{host}")
verdict()
