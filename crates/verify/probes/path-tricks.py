# The way out by names: above the root, through /proc's links, with descriptors of directories.
import os
from probe import check, open_for, refused, verdict

read = open_for(os.O_RDONLY)
secret = os.environ["PROBE_SECRET"]
for way in ["/..", "/../../../..", "/proc/self/root", "/proc/self/root/..", "/proc/self/cwd/../../..",
            "/proc/1/root", "/proc/1/cwd", "/proc/thread-self/root", "/dev/fd/0", "/dev/fd/../../.."]:
    refused(way, "ENOENT EACCES ENOTDIR ELOOP", read, way + secret)
os.chdir("/")
for _ in range(50):
    os.chdir("..")
refused("fifty times up", "ENOENT EACCES", read, secret.lstrip("/"))
root = os.open("/", os.O_PATH)
refused("O_PATH and up", "ENOENT EACCES", lambda: os.open(".." + secret, os.O_RDONLY, dir_fd=root))
os.symlink("/proc/1/root", "/tmp/way")
refused("a link to /proc/1/root", "ENOENT EACCES", read, "/tmp/way" + secret)
refused("a hard link to a host file", "EPERM EXDEV EACCES", os.link, "/usr/bin/env", "/tmp/env")
at, up = os.stat("/"), os.stat("/..")
check("/.. is /", (at.st_dev, at.st_ino) == (up.st_dev, up.st_ino))
verdict()
