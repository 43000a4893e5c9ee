# POSIX timers hold kernel memory; they are counted with queued signals.
import ctypes
import errno
from probe import check, syscall, verdict

made, error = 0, "no error"
timer = ctypes.c_int()
try:
    while made < 3000:
        syscall("timer_create", 1, None, ctypes.byref(timer))
        made += 1
except OSError as reason:
    error = errno.errorcode[reason.errno]
check(f"{made} timers, then {error}", made <= 1024)
verdict()
