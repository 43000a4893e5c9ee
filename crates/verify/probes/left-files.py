# Files of one run in every place that can be written: nothing of them is in another's.
import os
from probe import check, planted, planting, verdict

PLACES = ["/home/baponi", "/tmp", "/dev/shm", "/run", "/run/secrets", "/var/tmp", "/usr/local", "/etc"]
mark = os.environ["PROBE_NONCE"]
if planting():
    for place in PLACES:
        try:
            open(f"{place}/{mark}", "w").close()
        except OSError:
            pass
    planted()
else:
    for place in PLACES:
        check(place, not os.path.exists(f"{place}/{mark}"))
    check("nothing in /tmp and /dev/shm", os.listdir("/tmp") + os.listdir("/dev/shm") == [])
    verdict()
