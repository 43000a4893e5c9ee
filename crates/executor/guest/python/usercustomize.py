"""Runs in: an interpreter that waits for its job. `site` imports this before the main file.

An ImportError with this name ends the import as if there were no such module: `site` ignores it,
and the import system forgets this one.
"""

import cloche.start

if not cloche.start.start(__file__):
    raise ImportError(name="usercustomize")
