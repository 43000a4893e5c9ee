# A program made in memory runs under the same walls.
import os
import shutil
import sys
from probe import check, refused, status, syscall, verdict

if len(sys.argv) == 1:
    made = os.memfd_create("program")
    with open(sys.executable, "rb") as program, os.fdopen(os.dup(made), "wb") as copy:
        shutil.copyfileobj(program, copy)
    os.execve(made, [sys.executable, __file__, "again"], os.environ)
check("made in memory", "memfd:program" in os.readlink("/proc/self/exe"))
no_new, seccomp, effective = status("self", "NoNewPrivs", "Seccomp", "CapEff")
check(f"NoNewPrivs {no_new} Seccomp {seccomp}", (no_new, seccomp, int(effective, 16)) == ("1", "2", 0))
refused("unshare", "EPERM", syscall, "unshare", 0x10000000)
verdict()
