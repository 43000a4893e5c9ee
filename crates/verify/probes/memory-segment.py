# 300 MiB of System V shared memory where 128 are allowed.
import ctypes
from probe import libc, syscall

segment = syscall("shmget", 0, 300 << 20, 0o600)
at = syscall("shmat", segment, 0, 0)
ctypes.memset(at, 1, 300 << 20)
print("BROKE 300 MiB held")
