# env: ZED=last
# env: ALPHA=first one
import os
import subprocess
import sys

print(list(os.environ.items()))
print(os.environb[b"ALPHA"], os.getenv("ZED"), os.environ.get("PYTHONPATH"))
print(subprocess.run(["env"], capture_output=True, text=True).stdout)
os.environ["ADDED"] = "yes"
del os.environ["ZED"]
print(subprocess.run(["env"], capture_output=True, text=True).stdout)
print(sys.flags, os.get_exec_path())
