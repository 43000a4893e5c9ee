import runpy
import subprocess
import sys

print(subprocess.run([sys.executable, "-m", "json.tool"], input=b'{"a":1}', capture_output=True))
print(sorted(runpy.run_path("main2.py", run_name="ran")))
print(runpy.run_module("colorsys")["rgb_to_hsv"](0, 0, 0), sys.argv)
try:
    runpy.run_module("no_such_module")
except ImportError as error:
    print(error)
