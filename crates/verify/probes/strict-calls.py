# One call of each group that the strict profile takes away, and the sockets it does not have.
import ctypes
import os
import socket
from probe import NUMBERS, check, refused, syscall, verdict

NUMBERS.update({
    "splice": (275, 76), "landlock_create_ruleset": (444, 444), "get_mempolicy": (239, 236),
    "pkey_alloc": (330, 289), "openat2": (437, 437), "futex_waitv": (449, 449),
    "sched_setaffinity": (203, 122), "process_mrelease": (448, 448),
})

NONE = "ENOSYS"
read, write = os.pipe()
refused("splice", NONE, syscall, "splice", read, 0, write, 0, 1, 2)
refused("shmget", NONE, syscall, "shmget", 0, 4096, 0o1600)
refused("mq_open", NONE, syscall, "mq_open", b"x", os.O_CREAT | os.O_RDWR, 0o600, 0)
refused("landlock", NONE, syscall, "landlock_create_ruleset", 0, 0, 1)
refused("get_mempolicy", NONE, syscall, "get_mempolicy", 0, 0, 0, 0, 0)
refused("pkey_alloc", NONE, syscall, "pkey_alloc", 0, 0)
refused("openat2", NONE, syscall, "openat2", -100, b"/tmp", (ctypes.c_uint64 * 3)(), 24)
refused("futex_waitv", NONE, syscall, "futex_waitv", 0, 0, 0, 0, 0)
refused("inotify_init1", NONE, syscall, "inotify_init1", 0)
refused("timer_create", NONE, syscall, "timer_create", 1, 0, ctypes.byref(ctypes.c_int()))
refused("sched_setaffinity", "EPERM", os.sched_setaffinity, 0, os.sched_getaffinity(0))
refused("personality", "EPERM", syscall, "personality", 0xFFFFFFFF)
refused("process_mrelease", NONE, syscall, "process_mrelease", -1, 0)
for family in [socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK]:
    refused(family.name, "EAFNOSUPPORT", socket.socket, family, socket.SOCK_DGRAM)
one, other = socket.socketpair()
one.send(b"x")
check("local sockets work", other.recv(1) == b"x")
verdict()
