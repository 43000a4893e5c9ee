import os
import stat

for fd in range(256):
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        continue
    print(fd, stat.filemode(mode), os.get_inheritable(fd), os.get_blocking(fd), os.isatty(fd))
print(sorted(os.listdir("/proc/self/fd")))
print(open("/dev/null").fileno())
