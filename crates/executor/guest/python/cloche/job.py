"""Runs in: the guest of a cell, before its program. Reads a job and applies it.

`crates/jail/src/take.rs` is the reader of cells that are built from nothing and of templates;
`docs/GUEST-PROTOCOL.md` has the byte layout. A job that cannot be taken ends the guest.
"""

import os
import sys

from cloche import own_builtins as __builtins__  # noqa: F401
from cloche import protocol


def take_job(job_fd):
    """Writes the files of the job. Returns its variables, each as `NAME=value`."""
    try:
        return _take_records(_reader(job_fd))
    except (OSError, ValueError):
        os._exit(protocol.EXIT_BAD_JOB)


def _reader(job_fd):
    """A function that returns as many bytes of the job as it is asked for."""
    data, at = b"", 0

    def take(length):
        nonlocal data, at
        while len(data) - at < length:
            more = os.read(job_fd, max(1 << 16, length - len(data) + at))
            if not more:
                os._exit(protocol.EXIT_NO_JOB)
            data, at = data[at:] + more, 0
        at += length
        return data[at - length:at]

    return take


def _take_records(take):
    while True:
        kind = _word(take)
        if kind == protocol.JOB_FILE:
            mode = _word(take)
            _write_file(_path(take), mode, take)
        elif kind == protocol.JOB_DIRECTORY:
            os.chdir(_path(take))
        elif kind == protocol.JOB_EXEC:
            return _take_variables(take)
        else:
            raise ValueError(kind)


def _word(take):
    return int.from_bytes(take(4), "little")


def _path(take):
    length = _word(take)
    if length > protocol.PATH_BYTES:
        raise ValueError(length)
    return _without_nul(take(length))


def _without_nul(text):
    if text.find(b"\0") != len(text) - 1:
        raise ValueError(text)
    return text[:-1]


def _write_file(name, mode, take):
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    file = os.open(name, flags, mode)
    content = memoryview(take(_word(take)))
    while content:
        content = content[os.write(file, content):]
    os.close(file)


def _take_variables(take):
    """The variables of an exec record. What to exec is left out: this interpreter is it."""
    _flags, arguments, variables, length = (_word(take) for _ in range(4))
    if length > protocol.EXEC_BYTES:
        raise ValueError(length)
    strings = split_strings(take(length))
    if len(strings) != 1 + arguments + variables:
        raise ValueError(len(strings))
    return strings[1 + arguments:]


def split_strings(data):
    """Strings, each behind its length and with its NUL."""
    strings, at = [], 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at:at + 8], "little")
        if end > len(data):
            raise ValueError(end)
        strings.append(_without_nul(data[at + 8:end]))
        at = end
    return strings


def encode_strings(strings):
    """The reverse of `split_strings`."""
    return b"".join((len(text) + 1).to_bytes(8, "little") + text + b"\0" for text in strings)


def encode_file(name, mode, content):
    """The record of a file."""
    path = name + b"\0"
    return b"".join([
        _words(protocol.JOB_FILE, mode, len(path)), path, _words(len(content)), content])


def encode_exec(variables):
    """An exec record that has variables and nothing else."""
    strings = encode_strings([b"", *variables])
    return _words(protocol.JOB_EXEC, 0, 0, len(variables), len(strings)) + strings


def _words(*numbers):
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def set_variables(pairs):
    """Makes these the variables of this process."""
    wanted = [tuple(pair.split(b"=", 1)) for pair in pairs]
    present = os.environb
    if list(present.items()) != wanted:
        # All of them again, for their order.
        present.clear()
        present.update(wanted)


def redo_start():
    """Does again what the start-up did before there was a job: time zone and user site.

    Returns whether there is a user site, so that its `usercustomize` is still to be imported.
    """
    if "TZ" in os.environ:
        sys.modules["time"].tzset()
    site = sys.modules["site"]
    packages = site.getusersitepackages()
    if not os.path.isdir(packages):
        return False
    later = [entry for entry in site.getsitepackages() if entry in sys.path]
    rest = sys.path[sys.path.index(later[0]):] if later else []
    del sys.path[len(sys.path) - len(rest):]
    site.addsitedir(packages)
    sys.path.extend(rest)
    return True
