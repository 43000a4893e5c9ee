# Pid 1 of a forked cell is not in its cgroup: waking it again and again must cost next to nothing.
import os
import signal
import time
from probe import check, verdict


def used():
    """Processor time of pid 1, in seconds."""
    with open("/proc/1/stat") as stat:
        fields = stat.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def groups(pid):
    """Which cgroups a process is in."""
    with open(f"/proc/{pid}/cgroup") as lines:
        return sorted(lines)


# A process whose parent is gone is a child of pid 1, which hears of each of its stops.
read, write = os.pipe()
if os.fork() == 0:
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    os.write(write, b"%d" % child)
    os._exit(0)
child = int(os.read(read, 16))
os.wait()
stat = os.open(f"/proc/{child}/stat", os.O_RDONLY)


def is_stopped():
    return os.pread(stat, 64, 0).rsplit(b") ", 1)[1].startswith(b"T")


before, until, times = used(), time.monotonic() + 2, 0
while time.monotonic() < until:
    os.kill(child, signal.SIGSTOP)
    while not is_stopped() and time.monotonic() < until:
        pass
    os.kill(child, signal.SIGCONT)
    times += 1
spent = used() - before
own = groups(1) == groups("self")
check(f"{times} stops took pid 1 {spent:.2f} s" + (", charged to the cell" if own else ""), own or spent < 0.05)
os.kill(child, signal.SIGKILL)
verdict()
