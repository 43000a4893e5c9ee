"""Processes of the binary that an example starts itself."""

import json
import os
import re
import subprocess
import time

from conftest import BIN, PATIENCE


class Cloche:
    """A running `cloche`, with nothing in its environment but these variables."""

    def __init__(self, directory, *arguments, **variables):
        directory.mkdir()
        self._log = directory / "log"
        self._process = subprocess.Popen(
            [BIN, *arguments],
            cwd=directory,
            env={"PATH": os.environ["PATH"], **variables},
            stdin=subprocess.DEVNULL,
            stdout=self._log.open("w"),
            stderr=subprocess.STDOUT,
        )

    def wait_for(self, pattern):
        """What the first group of this pattern matches, once it is printed."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if found := re.search(pattern, self._log.read_text()):
                return found[1]
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.02)
        raise AssertionError(self._log.read_text())

    def wait_for_failure(self):
        """What the process printed before it ended with an error."""
        assert self._process.wait(PATIENCE) != 0
        return self._log.read_text()

    def stop(self):
        self._process.kill()
        self._process.wait(PATIENCE)


def start_sidecar(directory, **variables):
    """A sidecar and its address."""
    sidecar = Cloche(directory, "executor", "--listen", "127.0.0.1:0", **variables)
    try:
        return sidecar, sidecar.wait_for(r"listening on (http://\S+)")
    except AssertionError:
        sidecar.stop()
        raise


def start_server(directory, **variables):
    """A server and its first address, key and admin token."""
    server = Cloche(
        directory, "serve", "--listen", "127.0.0.1:0", "--data-dir", "data", **variables
    )
    try:
        server.wait_for("(Try it)")
        return server, json.loads((directory / "data" / "bootstrap.json").read_text())
    except AssertionError:
        server.stop()
        raise
