# Memory that cannot be reclaimed.
import ctypes
import mmap
import errno
from probe import check, libc, verdict

size = 1 << 20
page = mmap.mmap(-1, size)
at = ctypes.addressof(ctypes.c_char.from_buffer(page))
locked = libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(size))
reason = errno.errorcode.get(ctypes.get_errno(), "")
check(f"1 MiB: {reason or 'locked'}", locked != 0)
verdict()
