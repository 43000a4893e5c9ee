# What tells of the host or reaches its kernel is covered: a file by the null device, a directory
# by an empty one.
import os
import stat
from probe import check, note, verdict

proc = os.stat("/proc").st_dev
covered = 0
for name in [
    "kcore", "kmsg", "kallsyms", "kpagecount", "kpageflags", "kpagecgroup", "sysrq-trigger", "mtrr",
    "keys", "key-users", "acpi", "bus", "cmdline", "config.gz", "consoles", "devices", "driver",
    "interrupts", "iomem", "ioports", "irq", "modules", "scsi", "tty", "diskstats", "locks",
    "timer_list", "sched_debug", "slabinfo", "pressure",
]:
    try:
        at = os.stat(f"/proc/{name}")
    except FileNotFoundError:
        continue
    empty = os.listdir(f"/proc/{name}") == [] if stat.S_ISDIR(at.st_mode) else at.st_rdev == os.makedev(1, 3)
    covered += 1
    if at.st_dev == proc or not empty:
        check(f"/proc/{name} is not covered", False)
note(f"{covered} covered")
verdict()
