# Rebuilding the view of the file system.
from probe import refused, syscall, verdict

AT_FDCWD, RDONLY, REMOUNT, BIND, MOVE, PRIVATE = -100, 1, 32, 4096, 8192, 1 << 18
for what, call in {
    "tmpfs": ("mount", b"x", b"/tmp", b"tmpfs", 0, None),
    "proc": ("mount", b"proc", b"/tmp", b"proc", 0, None),
    "bind": ("mount", b"/usr", b"/tmp", None, BIND, None),
    "remount rw": ("mount", None, b"/usr", None, REMOUNT | BIND, None),
    "move": ("mount", b"/usr", b"/tmp", None, MOVE, None),
    "propagation": ("mount", None, b"/", None, PRIVATE, None),
    "umount /proc/sys": ("umount2", b"/proc/sys", 2),
    "umount /": ("umount2", b"/", 2),
    "pivot_root": ("pivot_root", b"/tmp", b"/tmp"),
    "chroot": ("chroot", b"/tmp"),
    "open_tree": ("open_tree", AT_FDCWD, b"/usr", 1),
    "fsopen": ("fsopen", b"tmpfs", 0),
    "move_mount": ("move_mount", AT_FDCWD, b"/usr", AT_FDCWD, b"/tmp", 0),
    "mount_setattr": ("mount_setattr", AT_FDCWD, b"/usr", 0, b"\0" * 32, 32),
}.items():
    refused(what, "EPERM", syscall, *call)
verdict()
