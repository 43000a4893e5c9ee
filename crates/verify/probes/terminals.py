# Terminals: its own work and are few; no other terminal can be reached or typed into.
import errno
import fcntl
import os
import termios
from probe import check, refused, syscall, verdict

first, own = os.openpty()
check("a terminal of its own", os.isatty(own))
refused("/dev/tty", "ENXIO", lambda: os.open("/dev/tty", os.O_RDWR))
refused("TIOCSTI", "EPERM EIO", fcntl.ioctl, own, termios.TIOCSTI, b"x")
refused("TIOCSTI with high bits", "EPERM EIO", syscall, "ioctl", own, 0x1_0000_0000 | termios.TIOCSTI, b"x")
refused("TIOCSETD", "EPERM", fcntl.ioctl, own, termios.TIOCSETD, b"\x0f\0\0\0")
held = [first, own]
try:
    while len(held) < 900:
        held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError as error:
    check(f"{errno.errorcode[error.errno]} after {len(held)}", len(held) <= 66)
else:
    check(f"{len(held)} terminals", False)
verdict()
