# No capability in any set, no way to new ones, a filter in place; for the guest and for pid 1.
import os
from probe import check, refused, status, verdict

SETS = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
for pid in ["self", "1"]:
    for name, value in zip(SETS, status(pid, *SETS)):
        check(f"{pid} {name} {value.lstrip('0') or 0}", int(value, 16) == 0)
    no_new, seccomp = status(pid, "NoNewPrivs", "Seccomp")
    check(f"{pid} NoNewPrivs {no_new} Seccomp {seccomp}", (no_new, seccomp) == ("1", "2"))
check(f"ids {os.getresuid()} {os.getresgid()}", set(os.getresuid() + os.getresgid()) == {1000})
check(f"groups {os.getgroups()}", set(os.getgroups()) <= {1000, 65534})
for what, attempt in [("setuid", lambda: os.setuid(0)), ("setgid", lambda: os.setgid(0)),
                      ("setgroups", lambda: os.setgroups([0])), ("setresuid", lambda: os.setresuid(0, 0, 0))]:
    refused(what, "EPERM EINVAL", attempt)
verdict()
