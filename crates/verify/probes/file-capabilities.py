# A program with file capabilities gains none, and none can be given to a file.
import os
import shutil
import subprocess
from probe import check, note, refused, status, verdict

KNOWN = ["/usr/bin/ping", "/usr/bin/newuidmap", "/usr/bin/newgidmap", "/usr/bin/dumpcap", "/usr/bin/fping",
         "/usr/lib/x86_64-linux-gnu/gstreamer1.0/gstreamer-1.0/gst-ptp-helper"]
for path in KNOWN:
    try:
        os.getxattr(path, "security.capability")
        child = subprocess.Popen([path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
    except OSError:
        continue
    sets = status(child.pid, "CapPrm", "CapEff", "CapAmb")
    check(f"{os.path.basename(path)}: {sets}", all(int(value, 16) == 0 for value in sets))
    child.kill()
    child.wait()
own = shutil.copy("/usr/bin/env", "/tmp/own")
every = b"\x01\x00\x00\x02" + b"\xff\xff\xff\xff" + b"\0" * 4 + b"\xff\xff\xff\xff" + b"\0" * 4
refused("give a file all of them", "EPERM EACCES EOPNOTSUPP ENOTSUP", os.setxattr, own, "security.capability", every)
note("nothing gained")
verdict()
