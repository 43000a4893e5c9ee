"""What every probe shares: raw system calls, notes of what was seen, the verdict."""

import ctypes
import errno
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

X86 = platform.machine() == "x86_64"

# name: (x86_64, aarch64)
NUMBERS = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "chroot": (161, 51),
    "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435),
    "fanotify_init": (300, 262), "finit_module": (313, 273), "fsopen": (430, 430),
    "init_module": (175, 105), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "io_setup": (206, 0), "io_uring_setup": (425, 425), "ioctl": (16, 29), "kcmp": (312, 272),
    "kexec_load": (246, 104), "keyctl": (250, 219), "memfd_secret": (447, 447),
    "mknodat": (259, 33), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "msgget": (68, 186), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "open_tree": (428, 428), "perf_event_open": (298, 241), "personality": (135, 92),
    "pidfd_getfd": (438, 438), "pidfd_open": (434, 434), "pivot_root": (155, 41),
    "prctl": (157, 167), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "quotactl": (179, 60), "reboot": (169, 142), "request_key": (249, 218),
    "sched_setscheduler": (144, 119), "seccomp": (317, 277), "semget": (64, 190),
    "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268),
    "shmat": (30, 196), "shmget": (29, 194), "socket": (41, 198), "swapon": (167, 224),
    "syslog": (103, 116), "timer_create": (222, 107), "umount2": (166, 39),
    "unshare": (272, 97), "userfaultfd": (323, 282), "vmsplice": (278, 75),
}

_seen, _broken = [], []


def syscall(name, *args):
    """A system call without libc's opinion of it."""
    number = NUMBERS[name][0 if X86 else 1]
    args = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *args)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def refused(what, allowed, attempt, *args):
    """Notes an attempt, which must fail with one of these errors."""
    try:
        got = attempt(*args)
    except OSError as error:
        name = errno.errorcode.get(error.errno, str(error.errno))
        (_seen if name in allowed.split() else _broken).append(f"{what}: {name}")
    else:
        _broken.append(f"{what}: worked ({got!r:.60})")


def check(what, good):
    """Notes something that must be so."""
    (_seen if good else _broken).append(what)


def note(what):
    """Notes something worth telling."""
    _seen.append(what)


def open_for(flags):
    """An attempt at opening a path, and nothing more."""
    return lambda path: os.close(os.open(path, flags))


def verdict():
    """The last line: what counts."""
    if _broken:
        print("BROKE", "; ".join(_broken), flush=True)
    else:
        print("HELD", "; ".join(_seen), flush=True)


def status(pid, *fields):
    """Lines of a process's status, by name."""
    with open(f"/proc/{pid}/status") as lines:
        found = dict(line.partition(":")[::2] for line in lines)
    return [found.get(field, "").strip() for field in fields]


def forks(count):
    """Makes children; nothing in a child, their pids in the parent."""
    made = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            return None
        made.append(child)
    return made


def planting():
    """Whether this is the first of two runs, which leaves something for the second to find."""
    return os.environ["PROBE_ROLE"] == "plant"


def planted(value=""):
    """Says that it is there, and stays until the other run is over."""
    print("READY", value, flush=True)
    os.read(0, 1)
