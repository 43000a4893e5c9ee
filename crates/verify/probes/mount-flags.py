# Each mount is what it should be: read-only where nothing writes, never with set-id or devices.
import os
from probe import check, verdict

WANTED = {
    "/": "nosuid nodev",
    "/usr": "ro nosuid nodev",
    "/dev": "ro nosuid noexec",
    "/dev/pts": "nosuid noexec",
    "/dev/shm": "nosuid nodev",
    "/home/baponi": "nosuid nodev",
    "/tmp": "nosuid nodev",
    "/run/secrets": "nosuid nodev",
    "/data": "nosuid nodev",
    "/proc": "nosuid nodev noexec",
    "/proc/sys": "ro nosuid nodev noexec",
    "/proc/fs": "ro nosuid nodev noexec",
}
with open("/proc/self/mountinfo") as lines:
    mounts = [line.split() for line in lines]
there = {fields[4]: fields[5].split(",") for fields in mounts}
if "/usr" not in there:
    # The root is an image, in one mount.
    WANTED["/"] += " " + WANTED.pop("/usr")
for place, wanted in WANTED.items():
    have = there.get(place, [])
    lacks = [flag for flag in wanted.split() if flag not in have]
    check(f"{place} lacks {lacks}" if lacks else place, not lacks)
unknown = [at for at in there if at not in WANTED and not at.startswith("/proc/")]
check(f"others {unknown}", not unknown)
kinds = sorted({fields[fields.index("-") + 1] for fields in mounts})
check(f"{kinds}", not {"cgroup", "cgroup2", "sysfs", "debugfs", "tracefs", "bpf"} & set(kinds))
secret = os.path.dirname(os.environ["PROBE_SECRET"])
check("no path of the host's", not any(secret in field for fields in mounts for field in fields))
verdict()
