# Settings of the whole host, opened for writing; nothing is written, in case it opens.
import os
from probe import check, refused, verdict


def write(path):
    with open(path, "wb", buffering=0) as file:
        # A covered file is the null device, and harmless.
        if os.fstat(file.fileno()).st_rdev == os.makedev(1, 3):
            raise PermissionError(13, "covered")


for path in [
    "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/drop_caches",
    "/proc/sys/net/ipv4/ip_forward", "/proc/sys/user/max_user_namespaces", "/proc/sys/fs/file-max",
    "/proc/sys/kernel/ns_last_pid", "/proc/irq/default_smp_affinity", "/proc/mtrr",
    "/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent", "/sys/power/state",
    "/proc/self/loginuid", "/proc/self/uid_map", "/proc/self/setgroups", "/proc/self/oom_adj",
]:
    refused(path, "EROFS EACCES ENOENT EPERM", write, path)
check("/sys is empty", os.listdir("/sys") == [])
verdict()
