# Reading, writing and steering other processes: pid 1, and also a child of one's own.
import ctypes
import errno
import os
import time
from probe import check, refused, syscall, verdict

ATTACH, SEIZE = 16, 0x4206
child = os.fork()
if child == 0:
    time.sleep(5)
    os._exit(0)
buffer = ctypes.create_string_buffer(16)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 16)
for who, pid in [("pid 1", 1), ("child", child)]:
    refused(f"ptrace {who}", "EPERM", syscall, "ptrace", ATTACH, pid, 0, 0)
    refused(f"seize {who}", "EPERM", syscall, "ptrace", SEIZE, pid, 0, 0)
    refused(f"read {who}", "EPERM", syscall, "process_vm_readv", pid, vector, 1, vector, 1, 0)
    refused(f"write {who}", "EPERM", syscall, "process_vm_writev", pid, vector, 1, vector, 1, 0)
    refused(f"compare {who}", "EPERM", syscall, "kcmp", pid, pid, 0, 0, 0)
try:
    handle = syscall("pidfd_open", 1, 0)
except OSError as error:
    check(f"pidfd_open: {error.strerror}", error.errno == errno.ENOSYS)
else:
    refused("descriptor of pid 1", "EPERM", syscall, "pidfd_getfd", handle, 4, 0)
os.kill(child, 9)
verdict()
