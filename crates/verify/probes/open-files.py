# Descriptors of a process are capped, and the cap cannot be raised.
import os
import resource
from probe import check, refused, verdict

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
check(f"limit {soft} of {hard}", hard <= 4096)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard + 1))
    check("raised", False)
except (ValueError, OSError):
    check("not to be raised", True)
held = []
try:
    while len(held) < 5000:
        held.append(os.dup(1))
    check("5000 open", False)
except OSError:
    check(f"{len(held)} open", True)
verdict()
