# More than the 32 MiB of disk, in each place it can write.
import errno
import os
from probe import check, verdict


def fill(path):
    written = 0
    try:
        with open(path, "wb", buffering=0) as file:
            while written < 64 << 20:
                written += file.write(b"x" * (1 << 20))
    except OSError as error:
        return written, errno.errorcode[error.errno]
    return written, "no error"


total = 0
for place in ["/home/baponi", "/tmp", "/dev/shm"]:
    written, error = fill(f"{place}/big")
    total += written
    check(f"{place}: {written >> 20} MiB, then {error}", error == "ENOSPC")
check(f"{total >> 20} MiB in all", total <= 32 << 20)
verdict()
