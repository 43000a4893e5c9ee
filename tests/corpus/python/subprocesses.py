import subprocess
import sys

done = subprocess.run(["sh", "-c", "echo out; echo err >&2; exit 3"], capture_output=True, text=True)
print(done.returncode, repr(done.stdout), repr(done.stderr))
print(subprocess.check_output([sys.executable, "-c", "print(6 * 7)"], text=True).strip())
piped = subprocess.run(["cat"], input="through a pipe\n", capture_output=True, text=True)
print(piped.stdout, end="")
try:
    subprocess.run(["no-such-command"])
except FileNotFoundError as error:
    print(error)
try:
    subprocess.run(["sh", "-c", "exit 5"], check=True)
except subprocess.CalledProcessError as error:
    print(error)
