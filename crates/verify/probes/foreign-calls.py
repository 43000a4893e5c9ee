# Calls by other numberings, which a filter for this one would misread.
import ctypes
import mmap
import os
import signal
from probe import X86, check, libc, note, verdict

# i386: mov eax, 20 (getpid); int 0x80; ret. x32: mov eax, 0x40000000 + 39 (getpid); syscall; ret.
CODE = {"i386": b"\xb8\x14\0\0\0\xcd\x80\xc3", "x32": b"\xb8\x27\0\0\x40\x0f\x05\xc3"}
ENOSYS = 38


def run(code):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    at = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_int)(at)()


def outcome(code):
    child = os.fork()
    if child == 0:
        os._exit(0 if run(code) == -ENOSYS else 1)
    _, ended = os.waitpid(child, 0)
    return ended


for name, code in CODE.items() if X86 else ():
    ended = outcome(code)
    refused = os.WIFEXITED(ended) and os.WEXITSTATUS(ended) == 0
    killed = os.WIFSIGNALED(ended) and os.WTERMSIG(ended) in (signal.SIGSYS, signal.SIGSEGV)
    how = "ENOSYS" if refused else f"signal {os.WTERMSIG(ended)}" if killed else "answered"
    check(f"{name}: {how}", refused or killed)
if not X86:
    note("this processor has no other numbering")
verdict()
