# Watching a file of the image for what others do with it.
import os
import select
import subprocess
from probe import planted, planting, check, syscall, verdict

FILE = "/usr/bin/env"
if planting():
    watch = syscall("inotify_init1", os.O_NONBLOCK)
    syscall("inotify_add_watch", watch, FILE.encode(), 0xFFF)
    # Its own use of the file is seen; then the other run uses it.
    subprocess.run([FILE, "true"], check=True)
    own = len(os.read(watch, 65536))
    planted(own)
    seen = bool(select.select([watch], [], [], 0)[0])
    print("BROKE the other's use was seen" if seen else f"HELD only its own {own} bytes of events")
else:
    subprocess.run([FILE, "true"], check=True)
