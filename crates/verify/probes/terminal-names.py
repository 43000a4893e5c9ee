# Terminals of another run.
import os
from probe import check, planted, planting, verdict

if planting():
    first, second = os.openpty()
    planted(os.ttyname(second))
else:
    there = sorted(os.listdir("/dev/pts"))
    check(f"/dev/pts {there}", there == ["ptmx"])
    verdict()
