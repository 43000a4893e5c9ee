import os
import sys

print("started", sys.argv[1:], __name__, os.getpid())
if len(sys.argv) < 3:
    os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:], "again"])
print(sys.orig_argv, sorted(os.listdir("/proc/self/fd"))[:3])
