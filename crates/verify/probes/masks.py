# What tells of the host or reaches its kernel is covered: a file by the null device, a directory
# by an empty one. What only root can open is refused.
import os
import stat
from probe import check, note, open_for, refused, verdict

proc = os.stat("/proc").st_dev
covered = 0
for name in [
    "kcore", "kmsg", "kallsyms", "kpagecount", "kpageflags", "kpagecgroup", "sysrq-trigger", "mtrr",
    "keys", "key-users", "acpi", "bus", "cmdline", "config.gz", "consoles", "devices", "driver",
    "interrupts", "iomem", "ioports", "irq", "modules", "scsi", "tty", "diskstats", "locks",
    "timer_list", "sched_debug", "slabinfo", "pressure", "asound", "crypto", "dma", "dynamic_debug",
    "fb", "mdstat", "misc", "partitions", "swaps", "allocinfo", "buddyinfo", "cgroups", "fs",
    "pagetypeinfo", "schedstat", "softirqs", "vmallocinfo", "vmstat", "zoneinfo", "sys/fs",
    "sys/kernel/pty", "sys/kernel/random/boot_id", "sys/kernel/random/entropy_avail",
]:
    try:
        at = os.stat(f"/proc/{name}")
    except FileNotFoundError:
        continue
    if stat.S_ISREG(at.st_mode) and at.st_mode & 0o007 == 0:
        # For the host's root alone: refused instead of covered.
        refused(f"/proc/{name}", "EACCES EPERM", open_for(os.O_RDONLY), f"/proc/{name}")
        refused(f"/proc/{name} to write", "EACCES EPERM", open_for(os.O_WRONLY), f"/proc/{name}")
        continue
    empty = os.listdir(f"/proc/{name}") == [] if stat.S_ISDIR(at.st_mode) else at.st_rdev == os.makedev(1, 3)
    covered += 1
    if at.st_dev == proc or not empty:
        check(f"/proc/{name} is not covered", False)
# What programs read stays.
for name in ["cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems",
             "sys/kernel/ostype", "sys/kernel/random/uuid", "sys/vm/overcommit_memory"]:
    with open(f"/proc/{name}", "rb") as file:
        check(f"{name} can be read", file.read(1) != b"")
# Nothing that is not meant to be seen lies beneath another mount.
with open("/proc/self/mountinfo") as lines:
    points = [line.split()[4] for line in lines]
twice = sorted({point for point in points if points.count(point) > 1})
check(f"mounted twice: {twice}", twice == [])
note(f"{covered} covered")
verdict()
