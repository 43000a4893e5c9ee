"""Does in the current directory what standard input says, one step after the other.

The same program works in a sandbox's home and in a plain directory; what cannot be done is not
done, as in a shell. Times are set to the number of the step, so that both have the same.
"""

import json
import os
import shutil
import signal
import sys


def stamp(path, at):
    if os.path.lexists(path):
        os.utime(path, ns=(at, at), follow_symlinks=False)


def paths():
    found = []
    for top, directories, files in os.walk("."):
        directories.sort()
        found += [os.path.join(top, name) for name in sorted(directories + files)]
    return sorted(path for path in found if not path.startswith("./main."))


def act(step):
    everything = paths()
    directories = ["."] + [p for p in everything if os.path.isdir(p) and not os.path.islink(p)]
    new = os.path.join(directories[step["into"] % len(directories)], step["name"])
    old = everything[step["on"] % len(everything)] if everything else None
    kind = step["act"]
    if os.path.islink(new):
        raise OSError("what it leads to would change, and keep the time of day")
    if kind == "write" or old is None:
        with open(new, "wb") as file:
            file.write(bytes(step["seed"] * at & 255 for at in range(step["seed"] % 5000)))
    elif kind == "directory":
        os.mkdir(new)
    elif kind == "append" and not os.path.islink(old):
        with open(old, "ab") as file:
            file.write(b"more")
    elif kind == "sparse":
        with open(new, "wb") as file:
            file.truncate(5 << 20)
            file.seek(step["seed"] << 4)
            file.write(b"island")
    elif kind == "remove" and os.path.isdir(old) and not os.path.islink(old):
        shutil.rmtree(old)
    elif kind == "remove":
        os.remove(old)
    elif kind == "rename":
        os.rename(old, new)
    elif kind == "link":
        os.link(old, new, follow_symlinks=False)
    elif kind == "symlink":
        os.symlink(os.path.basename(old), new)
    elif kind == "mode" and not os.path.islink(old):
        os.chmod(old, 0o700 | step["seed"] & 0o77 if os.path.isdir(old) else step["seed"] & 0o777)
    elif kind == "attribute" and not os.path.islink(old):
        os.setxattr(old, "user.mark", str(step["seed"]).encode())
    for path in (old, new):
        if path:
            stamp(path, step["at"])
            stamp(os.path.dirname(path), step["at"])
    if old and kind == "rename" and os.path.isdir(new):
        stamp(new, step["at"])


call = json.load(sys.stdin)
os.umask(0o022)
for step in call["steps"]:
    try:
        act(step)
    except (OSError, shutil.Error):
        stamp(".", step["at"])
if call["dies"]:
    os.kill(os.getpid(), signal.SIGKILL)
