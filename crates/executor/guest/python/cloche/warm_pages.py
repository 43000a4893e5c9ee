"""Runs in: a template. Finds the memory pages that every program needs, so that the kernel can map
and copy them in one go for each cell.
"""

import os
import sys

from cloche import job, protocol
from cloche import own_builtins as __builtins__  # noqa: F401

_PAGE_BITS = 12
# Seconds that the probe may take for its program.
_PATIENCE = 5
# Flags of an entry of /proc/PID/pagemap, above its 56 lower bits.
_PRESENT, _OF_A_FILE, _EXCLUSIVE = 0x80, 0x20, 0x01


def measure(select, fast_exit, program):
    """The pages that a program needs between its fork and its end, as sets of numbers: those that
    it writes to, and those of files that it only reads. Returns None in the probe.

    The probe is a copy of the template. It goes the whole way of a cell, with this program, and
    stops at its end. The pages that it then has for itself are those that the program writes to. An
    idle second copy shares the pages that only the template itself has written to meanwhile.
    """
    if not os.path.exists("/proc/self/pagemap"):
        return set(), set()
    (job_end, job_fd), (done_fd, done_end) = os.pipe(), os.pipe()
    idle = os.fork()
    if idle == 0:
        os.kill(os.getpid(), protocol.SIGSTOP)
    probe = os.fork()
    if probe == 0:
        _become_probe(job_end)
        fast_exit.stop_at_end(done_end)
        return None
    os.close(job_end)
    os.close(done_end)
    os.write(job_fd, b"".join([
        job.encode_file(b"main.py", 0o600, program),
        job.encode_exec(list(map(b"=".join, os.environb.items())))]))
    pages = set(), set()
    if select.select([done_fd], [], [], _PATIENCE)[0] and os.read(done_fd, 1):
        pages = _read_pages(probe)
    for pid in (probe, idle):
        os.kill(pid, protocol.SIGKILL)
        os.waitpid(pid, 0)
    os.close(job_fd)
    os.close(done_fd)
    try:
        os.unlink("main.py")
    except OSError:
        pass
    return pages


def _become_probe(job_end):
    """Gives the probe its descriptors: no output, the job, and no requests for forks."""
    nothing = os.open("/dev/null", os.O_RDWR)
    for fd, place in ((nothing, 1), (nothing, 2), (job_end, protocol.JOB_FD)):
        os.dup2(fd, place)
    os.close(protocol.FORK_FD)


def _read_pages(pid):
    """The pages of a process that has stopped. It has the mappings of this one."""
    written, read = set(), set()
    with open("/proc/self/maps") as maps, open("/proc/%d/pagemap" % pid, "rb", 0) as pagemap:
        for line in maps:
            addresses, access, _, _, _, *name = line.split()
            start, end = (int(address, 16) >> _PAGE_BITS for address in addresses.split("-"))
            is_file = access[0] == "r" and name and name[0][0] == "/"
            if access != "rw-p" and not is_file:
                continue
            pagemap.seek(start * 8)
            flags = memoryview(pagemap.read((end - start) * 8)).cast("Q")
            if access == "rw-p":
                written.update(start + at for at, flag in enumerate(flags) if _is_own(flag))
            else:
                read.update(start + at for at, flag in enumerate(flags) if flag >> 56 & _PRESENT)
    return written, read


def join_pages(pages):
    """Pages as ranges: a flat list of addresses and lengths."""
    ranges, last = [], None
    for page in sorted(pages):
        if page - 1 == last:
            ranges[-1] += 1 << _PAGE_BITS
        else:
            ranges += [page << _PAGE_BITS, 1 << _PAGE_BITS]
        last = page
    return ranges


def thin_pages(pages, present=frozenset()):
    """One page of each sixteen, since the kernel maps the pages of a file around it as well; none
    where one of the sixteen is present.
    """
    blocks = {page >> 4 for page in present}
    return set({page >> 4: page for page in pages if page >> 4 not in blocks}.values())


def _is_own(flag):
    """Whether a page is present, mapped by no other process, and not of a file."""
    wanted = _PRESENT | _EXCLUSIVE
    return flag >> 56 & (wanted | _OF_A_FILE) == wanted


def rehearse(gc, fast_exit):
    """Writes once to what every program writes to, so that its pages are copied by now.

    This is what lies between a job and its program: variables are compared, the user site is looked
    for, imports fail, a main file is probed and compiled. Then what lies behind the program.
    """
    namespace = {"__name__": "warm"}
    source = "import os, sys\nprint('', end='')\nwarm = [str(n) for n in range(32)]\n"
    exec(compile(source, "warm", "exec"), namespace)
    with open("/dev/null", "rb") as nothing:
        nothing.read()
    dict(pair.split(b"=", 1) for pair in [b"=".join(pair) for pair in os.environb.items()])
    os.path.isdir(sys.modules["site"].getusersitepackages())
    _rehearse_imports()
    # What the interpreter writes to when it ends: every module, all builtins, what the collector
    # goes through.
    for kept in (dict(vars(sys)), dict(vars(sys.modules["builtins"])), dict(sys.modules)):
        kept.clear()
    list(map(sys.modules["_weakref"].ref, sys.modules.values()))
    gc.collect()
    fast_exit.rehearse()


def _rehearse_imports():
    """Imports that fail: of a missing module, of one that raises, and the probe of a main file."""
    importlib = sys.modules["_frozen_importlib"]

    class Absent:
        create_module = staticmethod(lambda spec: None)

        @staticmethod
        def exec_module(module):
            raise ImportError(name=module.__name__)

    missing = "cloche_has_no_such_module"
    attempts = [
        lambda: __import__(missing),
        lambda: importlib._load(importlib.ModuleSpec(missing, Absent)),
    ]
    attempts += [lambda hook=hook: hook("/etc/passwd") for hook in sys.path_hooks]
    for attempt in attempts:
        try:
            attempt()
        except ImportError:
            pass
    sys.path_importer_cache.pop("/etc/passwd", None)
