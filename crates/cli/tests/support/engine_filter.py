# Runs in: test. Installs what the system call filter of a container engine does to an ordinary
# user: no namespaces, no mounts, and no clone3, whose flags a filter cannot read. Then executes a
# program.
import ctypes
import os
import platform
import struct
import sys

LOAD, IS, HAS, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
NAMESPACES = 0x7E020000
X86 = platform.machine() == "x86_64"
CLONE, CLONE3 = (56, 435) if X86 else (220, 435)
REFUSED = [272, 308, 165, 155, 428] if X86 else [97, 268, 40, 41, 428]  # unshare, setns, mount, ...

rules = [(LOAD, 0, 0, 0)]
for number in REFUSED:
    rules += [(IS, 0, 1, number), (RETURN, 0, 0, EPERM)]
rules += [(IS, 0, 1, CLONE3), (RETURN, 0, 0, ENOSYS)]
rules += [(IS, 0, 3, CLONE), (LOAD, 0, 0, 16), (HAS, 0, 1, NAMESPACES), (RETURN, 0, 0, EPERM)]
rules += [(RETURN, 0, 0, ALLOW)]
program = b"".join(struct.pack("HBBI", *rule) for rule in rules)


class Filter(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("rules", ctypes.c_char_p)]


libc = ctypes.CDLL(None, use_errno=True)
installed = libc.prctl(22, 2, ctypes.byref(Filter(len(rules), program)))
assert installed == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
