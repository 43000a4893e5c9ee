# The environment and the command line hold what the run was given, and nothing of the host's.
import os
from probe import check, verdict

USUAL = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "LANG", "PYTHONUNBUFFERED",
         "PIP_BREAK_SYSTEM_PACKAGES", "PIP_DISABLE_PIP_VERSION_CHECK", "NPM_CONFIG_PREFIX",
         "NPM_CONFIG_UPDATE_NOTIFIER", "LC_CTYPE"}
strange = [name for name in os.environ if name not in USUAL and not name.startswith("PROBE_")]
check(f"variables beyond the usual: {strange}", not strange)
with open("/proc/self/environ", "rb") as file:
    raw = {pair.split(b"=")[0].decode() for pair in file.read().split(b"\0") if pair}
# What made the interpreter wait for its job may still be there; it is the same for everyone.
ours = {"CLOCHE_START", "CLOCHE_PRELOAD", "PYTHONPATH"}
strange = [name for name in raw - USUAL - ours if not name.startswith("PROBE_")]
check(f"in the raw block: {strange}", not strange)
with open("/proc/self/cmdline", "rb") as file:
    words = file.read().rstrip(b"\0").split(b"\0")
check(f"command line {words}", words[1:] == [b"/home/baponi/main.py"])
check("working directory", os.getcwd() == "/home/baponi")
verdict()
