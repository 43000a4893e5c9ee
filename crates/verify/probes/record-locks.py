# A record lock is kernel memory that no control group counts: a cell with very many is ended.
import fcntl
import os
import signal
import struct
import time
from probe import refused, syscall, verdict

OFD_SETLK, OFD_SETLKW = 37, 38
CLONE_FILES = 0x400
# Far more than a cell may hold, and few enough for a host without a limit.
MOST = 60_000
FILES = 128


def lock(file, at):
    kind = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
    fcntl.fcntl(file, fcntl.F_SETLK, kind)


files = [os.open(f"lock{number}", os.O_RDWR | os.O_CREAT) for number in range(FILES)]
whole_file = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
# These would be counted for no process.
for name, command in [("F_OFD_SETLK", OFD_SETLK), ("F_OFD_SETLKW", OFD_SETLKW)]:
    refused(name, "EINVAL", fcntl.fcntl, files[0], command, whole_file)


def share_files():
    child = syscall("clone", CLONE_FILES | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


refused("CLONE_FILES", "EINVAL", share_files)
verdict()

# Spread over files and processes: no single one has many.
child = os.fork()
first = MOST // 2 if child == 0 else 0
for number in range(first, first + MOST // 2):
    # Not next to each other, or the kernel would make one of two.
    lock(files[number % FILES], number * 2)
time.sleep(3)
print(f"BROKE {MOST} record locks were held", flush=True)
