# Who the guest is on the host: not root, and no other ids are within reach. Two cells at once
# are two users.
import os
from probe import check, planted, planting, verdict

with open("/proc/self/uid_map") as lines:
    ranges = [tuple(map(int, line.split())) for line in lines]
mine = next((outside + os.getuid() - inside for inside, outside, count in ranges
             if inside <= os.getuid() < inside + count), None)
if planting():
    planted(mine)
else:
    check(f"{ranges}", sum(count for *_, count in ranges) <= 2)
    check(f"on the host {mine}, the other is {os.environ['PROBE_FOUND']}",
          mine not in (None, 0) and str(mine) != os.environ["PROBE_FOUND"])
    verdict()
