# Command line, name and environment of pid 1 tell nothing about the host.
import os
import sys
from probe import check, refused, open_for, verdict

IMAGE = ("/usr/", "/home/baponi", "/etc/cloche", "/proc/self/fd/", sys.executable)
with open("/proc/1/cmdline", "rb") as file:
    words = [word.decode(errors="replace") for word in file.read().split(b"\0")]
paths = [word for word in words if "/" in word and not word.startswith(IMAGE)]
check(f"no path of the host in its command line: {paths}", not paths)
with open("/proc/1/comm") as file:
    name = file.read().strip()
check(f"its name is ours or the image's: {name}", name == "cloche" or name.startswith("python"))
refused("its environment", "EACCES EPERM ENOENT", open_for(os.O_RDONLY), "/proc/1/environ")
refused("its program", "EACCES EPERM", os.readlink, "/proc/1/exe")
verdict()
