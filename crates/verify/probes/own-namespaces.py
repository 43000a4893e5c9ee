# Two cells at once have not one namespace in common.
import os
from probe import check, planted, planting, verdict

KINDS = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"]
own = [os.readlink(f"/proc/self/ns/{kind}") for kind in KINDS]
if planting():
    planted(",".join(own))
else:
    shared = [kind for kind, one, other in zip(KINDS, own, os.environ["PROBE_FOUND"].split(",")) if one == other]
    check(f"in common: {shared}", not shared)
    verdict()
