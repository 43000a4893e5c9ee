# A namespace of one's own gives capabilities in it; none is to be had.
import os
from probe import refused, syscall, verdict

SIGCHLD = 17
KINDS = {"mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000,
         "pid": 0x20000000, "net": 0x40000000}


def clone(call, *args):
    child = syscall(call, *args)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "a child"


for kind, flag in KINDS.items():
    refused(f"unshare {kind}", "EPERM", syscall, "unshare", flag)
    refused(f"clone {kind}", "EPERM", clone, "clone", flag | SIGCHLD, 0, 0, 0, 0)
refused("unshare time", "EPERM", syscall, "unshare", 0x80)
user = KINDS["user"].to_bytes(8, "little") + b"\0" * 24 + SIGCHLD.to_bytes(8, "little") + b"\0" * 24
refused("clone3 user", "ENOSYS EPERM", clone, "clone3", user, 64)
own = os.open("/proc/self/ns/net", os.O_RDONLY)
refused("setns", "EPERM", syscall, "setns", own, 0)
verdict()
