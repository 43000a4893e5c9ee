# The guest writes in its home, /tmp, /dev/shm and /run/secrets, and nowhere else.
import os
from probe import check, refused, verdict


def make(place):
    path = os.path.join(place, "made")
    with open(path, "w") as file:
        file.write("x")
    os.unlink(path)


for place in ["/home/baponi", "/tmp", "/dev/shm", "/var/tmp", "/run/secrets"]:
    try:
        make(place)
        good = True
    except OSError as error:
        place, good = f"{place}: {error}", False
    check(place, good)
for place in ["/", "/etc", "/usr", "/usr/bin", "/usr/local/lib", "/var/lib", "/opt", "/root", "/run", "/run/cloche", "/run/trust", "/home",
              "/dev", "/proc", "/sys", "/srv", "/mnt", "/data"]:
    refused(place, "EACCES EROFS EPERM ENOENT", make, place)
for attempt, path in [(os.unlink, "/etc/passwd"), (os.rmdir, "/srv"), (os.unlink, "/usr/bin/env")]:
    refused(f"remove {path}", "EACCES EROFS EPERM", attempt, path)
refused("chmod", "EPERM EROFS EACCES", os.chmod, "/etc/passwd", 0o666)
refused("chown", "EPERM EROFS EACCES", os.chown, "/home/baponi/main.py", 0, 0)
verdict()
