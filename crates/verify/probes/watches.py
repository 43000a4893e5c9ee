# Instances of inotify count against the creator of the namespace, so one cell could use up the
# host's. A second cell must get some while the first holds all it could get.
import errno
import os
from probe import check, planted, planting, syscall, verdict


def take():
    held = []
    try:
        while len(held) < 500:
            held.append(syscall("inotify_init1", 0))
    except OSError as error:
        return len(held), errno.errorcode[error.errno]
    return len(held), "no error"


if planting():
    planted(take()[0])
else:
    got, error = take()
    first = int(os.environ["PROBE_FOUND"])
    check(f"the first cell got {first}, this one {got}, then {error}", 0 < got <= 64 and first <= 64)
    verdict()
