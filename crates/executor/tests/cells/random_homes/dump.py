"""Prints everything that there is below the current directory, as one JSON line per path."""

import collections
import hashlib
import json
import os
import stat

rows = []
names = collections.defaultdict(list)
for top, directories, files in os.walk(b"."):
    for name in directories + files:
        path = os.path.join(top, name)
        if path.startswith(b"./main."):
            continue
        is_link = os.path.islink(path)
        info = os.lstat(path)
        row = {
            "path": path.decode("latin1"),
            "kind": stat.S_IFMT(info.st_mode),
            "mode": None if is_link else stat.S_IMODE(info.st_mode),
            "mtime": info.st_mtime_ns,
        }
        is_readable = os.access(path, os.R_OK, follow_symlinks=False)
        if is_link:
            row["target"] = os.readlink(path).decode("latin1")
        elif is_readable:
            row["attributes"] = {key: os.getxattr(path, key).decode() for key in sorted(os.listxattr(path))}
        if stat.S_ISREG(info.st_mode):
            row["size"] = info.st_size
            row["is_sparse"] = info.st_blocks * 512 < info.st_size // 2
            if is_readable:
                with open(path, "rb") as file:
                    row["content"] = hashlib.sha256(file.read()).hexdigest()
        rows.append((row, (info.st_dev, info.st_ino)))
        names[info.st_dev, info.st_ino].append(row["path"])
for row, identity in rows:
    print(json.dumps({**row, "names": sorted(names[identity])}, sort_keys=True))
