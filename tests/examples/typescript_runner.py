"""Runs TypeScript with the Node and the packages of `.conformance`."""

import os
import subprocess

from conftest import HERE, KEY, PATIENCE, URL

PACKAGES = HERE.parents[1] / ".conformance" / "node_modules"
# Node only strips the types; the compiler checks them against those of the package.
CHECK = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022"]


def place(directory, source):
    """A module in a directory of its own, where the packages can be found."""
    (directory / "node_modules").symlink_to(PACKAGES)
    (directory / "package.json").write_text('{"type": "module"}')
    module = directory / "example.ts"
    module.write_text(source)
    return module


def run_tool(name, *arguments, directory):
    environment = {
        "PATH": f"{PACKAGES / '.bin'}:{os.environ['PATH']}",
        "PERPLEXITY_BASE_URL": URL,
        "PERPLEXITY_API_KEY": KEY,
    }
    done = subprocess.run(
        [PACKAGES / ".bin" / name, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done
    return done.stdout


def run_typescript(directory, source):
    """Checks the types of a module, runs it, and returns what it printed."""
    module = place(directory, source)
    try:
        run_tool("tsc", *CHECK, module.name, directory=directory)
        return run_tool("node", module.name, directory=directory)
    finally:
        (directory / "node_modules").unlink()
