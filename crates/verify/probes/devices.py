# No device of the host's: none there, none to be made.
import os
import stat
from probe import check, open_for, refused, syscall, verdict

AT_FDCWD = -100
there = sorted(os.listdir("/dev"))
usual = {"fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
         "urandom", "zero"}
check(f"/dev {there}", set(there) == usual)
for name in ["mem", "kmsg", "kvm", "fuse", "vda", "sda", "vsock", "userfaultfd", "net/tun", "loop0"]:
    refused(name, "ENOENT", open_for(os.O_RDONLY), f"/dev/{name}")
for what, mode, major, minor in [("kmem", stat.S_IFCHR, 1, 2), ("kmsg", stat.S_IFCHR, 1, 11),
                                 ("disk", stat.S_IFBLK, 254, 0), ("null", stat.S_IFCHR, 1, 3),
                                 ("whiteout", stat.S_IFCHR, 0, 0)]:
    refused(f"mknod {what}", "EPERM EACCES", syscall, "mknodat", AT_FDCWD, b"/tmp/node",
            mode | 0o666, os.makedev(major, minor))
refused("a new node in /dev", "EROFS EACCES EPERM", os.mkfifo, "/dev/pipe")
verdict()
