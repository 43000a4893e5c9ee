# Reading much more of the image's files than the memory limit: the cache is counted, and given back.
import os
from probe import check, verdict

read = 0
for place, _, names in os.walk("/usr"):
    for name in names:
        path = os.path.join(place, name)
        if os.path.islink(path) or not os.access(path, os.R_OK) or not os.path.isfile(path):
            continue
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(1 << 20):
                read += len(chunk)
    if read > 200 << 20:
        break
check(f"read {read >> 20} MiB", read > 0)
verdict()
