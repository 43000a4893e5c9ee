# Pid 1 is our own program: its memory, descriptors and binary are not the guest's.
import os
from probe import open_for, refused, verdict

for name in ["mem", "environ", "maps", "auxv", "exe", "root", "cwd", "fd/0", "fd/4", "ns/mnt", "ns/user",
             "stack", "syscall", "map_files", "pagemap", "io"]:
    path = f"/proc/1/{name}"
    refused(name, "EACCES EPERM ENOENT", open_for(os.O_RDONLY), path)
for name in ["mem", "exe", "oom_score_adj", "uid_map", "setgroups", "attr/current", "coredump_filter"]:
    refused(f"write {name}", "EACCES EPERM ENOENT EROFS", open_for(os.O_WRONLY), f"/proc/1/{name}")
refused("its link", "EACCES EPERM", os.readlink, "/proc/1/exe")
refused("run it", "EACCES EPERM", os.execv, "/proc/1/exe", ["cloche", "--version"])
refused("list its descriptors", "EACCES EPERM", os.listdir, "/proc/1/fd")
verdict()
