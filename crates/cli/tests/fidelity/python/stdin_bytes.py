# stdin: "one\ntwo\nthree\n"
import os
import subprocess
import sys

print(os.read(0, 4), sys.stdin.buffer.readline())
print(subprocess.run(["cat"], capture_output=True).stdout)
print(sys.stdin.buffer.read(), os.read(0, 1))
