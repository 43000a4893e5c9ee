import os
import subprocess
import sys

print(sys.flags.hash_randomization, "PYTHONHASHSEED" in os.environ)
code = "print(hash('a'))"
print(len({subprocess.check_output([sys.executable, "-c", code]) for _ in range(3)}) > 1)
