"""Runs in: test. Starts interpreters with the runtime, outside of any cell.

CLOCHE_ARCHIVE and CLOCHE_LIBRARY name what build.rs has made. The interpreter under test is the one
that runs the tests.
"""

import contextlib
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

ARCHIVE = os.environ["CLOCHE_ARCHIVE"]
LIBRARY = os.environ["CLOCHE_LIBRARY"]
sys.path.insert(0, ARCHIVE)

from cloche import job, protocol  # noqa: E402

PATIENCE = 60
# The descriptors that a started interpreter gets are free of anything else here.
while os.open("/dev/null", os.O_RDONLY) < 9:
    pass
EXITED, SIGNALLED = 3, 4


def write_job(files, variables):
    """A job as the executor writes it."""
    records = [job.encode_file(name, 0o644, content) for name, content in files.items()]
    return b"".join([*records, job.encode_exec(variables)])


def variables(home):
    return {"PATH": os.environ["PATH"], "HOME": home, "PYTHONUNBUFFERED": "1", "LANG": "C.UTF-8"}


@contextlib.contextmanager
def home():
    """A directory with the archive and the library, as a home has them at the start."""
    with tempfile.TemporaryDirectory() as made:
        directory = os.path.realpath(made)
        shutil.copy(ARCHIVE, os.path.join(directory, "cloche.zip"))
        shutil.copy(LIBRARY, os.path.join(directory, protocol.TEMPLATE_LIBRARY))
        yield directory


def start(home, way, fds, **more):
    """Starts an interpreter that waits; `fds` are what it has from descriptor 3 on."""
    places = range(3, 3 + len(fds))

    def place():
        for fd, at in zip(fds, places):
            os.dup2(fd, at)

    more_variables = {"PYTHONPATH": home + "/cloche.zip", protocol.START_VARIABLE: way}
    return subprocess.Popen(
        [sys.executable, home + "/main.py"], cwd=home, env={**variables(home), **more_variables},
        preexec_fn=place,  # noqa: PLW1509 (there is one thread)
        pass_fds=places, **more)


def run_plain(program):
    """Runs a program as anyone would: exit code, output, errors."""
    with home() as directory:
        main = os.path.join(directory, "main.py")
        with open(main, "w") as file:
            file.write(program)
        done = subprocess.run(
            [sys.executable, main], cwd=directory, env=variables(directory), timeout=PATIENCE,
            capture_output=True, check=False)
        return done.returncode, *_texts(done.stdout, done.stderr, directory)


def run_single(program):
    """Runs a program in an interpreter that has waited for it."""
    ours, theirs = socket.socketpair()
    with home() as directory, ours, theirs:
        process = start(directory, protocol.START_SINGLE, [theirs.fileno()],
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        theirs.close()
        ours.settimeout(PATIENCE)
        if ours.recv(1) != protocol.READY.encode():
            raise AssertionError(process.communicate())
        ours.sendall(_job_of(program, directory))
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, *_texts(out, err, directory)


def _job_of(program, directory):
    pairs = ["=".join(pair).encode() for pair in variables(directory).items()]
    return write_job({b"main.py": program.encode()}, pairs)


def _texts(out, err, directory):
    return [without_addresses(text.decode().replace(directory, "HOME")) for text in (out, err)]


def without_addresses(text):
    return re.sub("0x[0-9a-f]+", "0x?", text)


class Template:
    """A template, and cells without walls that are forked from it."""

    def __init__(self, directory):
        self.directory = directory
        (self.job, job_end), unused = socket.socketpair(), os.open("/dev/null", os.O_RDWR)
        self.requests, fork_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with job_end, fork_end:
            self.process = start(directory, protocol.START_TEMPLATE,
                                 [job_end.fileno(), unused, fork_end.fileno()])
        os.close(unused)
        self.job.settimeout(PATIENCE)
        self.requests.settimeout(PATIENCE)
        if self.job.recv(1) != protocol.READY.encode():
            raise AssertionError("no template: it ended with %r" % self.process.wait(PATIENCE))

    def run(self, program):
        """Runs a program in a new cell: how it ended, output, errors."""
        (job, job_end), (out, out_end), (err, err_end) = (socket.socketpair() for _ in range(3))
        control, control_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        no_id, user = 0xFFFFFFFF, os.getuid()
        request = struct.pack("<3IQ", no_id, user, user, 0)
        with open("/dev/null") as nothing, job_end, out_end, err_end, control_end:
            fds = [end.fileno() for end in (nothing, out_end, err_end, job_end, control_end)]
            socket.send_fds(self.requests, [request], fds)
            answer, pidfds, _, _ = socket.recv_fds(self.requests, 64, 4)
        for pidfd in pidfds:
            os.close(pidfd)
        if struct.unpack("<i", answer[:4])[0] <= 0:
            raise AssertionError(answer)
        with job, out, err, control:
            for end in (job, out, err, control):
                end.settimeout(PATIENCE)
            if job.recv(1) != protocol.READY.encode():
                raise AssertionError("the cell did not wait for its job")
            job.sendall(_job_of(program, self.directory))
            texts = _texts(_read_all(out), _read_all(err), self.directory)
            return _ending(control), *texts

    def stop(self):
        self.requests.close()
        self.job.close()
        self.process.kill()
        self.process.wait()


def _read_all(end):
    parts = []
    while True:
        part = end.recv(1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)


def _ending(control):
    """The exit code that pid 1 reports; a signal is negative, as `subprocess` has it."""
    while True:
        report, fds, _, _ = socket.recv_fds(control, 64, 1)
        for fd in fds:
            os.close(fd)
        if not report:
            raise AssertionError("pid 1 has not reported an end")
        kind, value = struct.unpack("<Ii", report[:8])
        if kind in (EXITED, SIGNALLED):
            return value if kind == EXITED else -value
