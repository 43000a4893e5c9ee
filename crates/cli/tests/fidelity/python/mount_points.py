# What is mounted where and how, whatever it was built from; and what can be written.
import os

mounts = [line.split(" - ") for line in open("/proc/self/mountinfo")]
there = {head.split()[4]: (head.split()[3], head.split()[5], tail.split()[0]) for head, tail in mounts}
print(sorted(there.items()))
for path in ("/x", "/etc/x", "/usr/x", "/var/x", "/dev/x", "/proc/x", "/run/x", "/data/x", "/mnt/x"):
    try:
        open(path, "w")
        print(path, "written")
    except OSError as error:
        print(path, error.strerror)
print(sorted(os.listdir("/srv")), sorted(os.listdir("/run")), os.statvfs("/").f_flag)
