# Calls that hand the kernel a program, a module, a page fault or someone else's file.
import ctypes
import os
from probe import X86, refused, syscall, verdict

AT_FDCWD = -100
zero = ctypes.create_string_buffer(256)
for name, *args in [
    ("bpf", 0, zero, 128),
    ("perf_event_open", zero, 0, -1, -1, 0),
    ("userfaultfd", 0),
    ("keyctl", 0, -3, 1), ("add_key", b"user", b"probe", b"x", 1, -3), ("request_key", b"user", b"probe", None, 0),
    ("io_uring_setup", 1, zero), ("kexec_load", 0, 0, 0, 0),
    ("init_module", zero, 0, b""), ("finit_module", 0, b"", 0),
    ("open_by_handle_at", AT_FDCWD, zero, 0), ("name_to_handle_at", AT_FDCWD, b"/", zero, zero, 0),
    ("fanotify_init", 0, 0), ("memfd_secret", 0), ("vmsplice", 1, zero, 0, 0),
    ("seccomp", 1, 0, zero), ("quotactl", 0, None, 0, zero), ("swapon", b"/tmp/x", 0),
    ("acct", None), ("clock_settime", 0, zero), ("syslog", 10, None, 0),
] + ([("io_setup", 1, zero)] if X86 else []):
    refused(name, "EPERM ENOSYS", syscall, name, *args)
# Without the magic numbers it would fail anyway, with EINVAL.
refused("reboot", "EPERM", syscall, "reboot", 0, 0, 0, None)
READ_IMPLIES_EXEC, SET_MM, SET_SPECULATION, SET_SECCOMP = 0x0400000, 35, 53, 22
refused("personality", "EPERM", syscall, "personality", READ_IMPLIES_EXEC)
for what, option in [("set_mm", SET_MM), ("speculation", SET_SPECULATION), ("set_seccomp", SET_SECCOMP)]:
    refused(f"prctl {what}", "EPERM EINVAL", syscall, "prctl", option, 1, 0, 0, 0)
verdict()
