import subprocess
import sys

print(subprocess.run([sys.executable, "-c", "import sys; print(sys.argv, sys.path, sys.flags)"],
                     capture_output=True))
print(subprocess.run([sys.executable, "-c", "import sys; print(sorted(sys.modules))"],
                     capture_output=True, text=True).stdout)
print(subprocess.check_output("echo $0 $PWD; ls -a; cat", shell=True, input=b"in"))
print(subprocess.run(["sh", "-c", "exit 7"]).returncode, subprocess.call(["sh", "-c", "kill -9 $$"]))
try:
    subprocess.run(["no-such-program"])
except FileNotFoundError as error:
    print(type(error))
try:
    subprocess.run(["sleep", "9"], timeout=0.05)
except subprocess.TimeoutExpired as error:
    print(type(error))
sys.stdout.flush()
subprocess.run(["echo", "straight to stdout"])
subprocess.run("echo to stderr >&2", shell=True)
child = subprocess.Popen([sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(child.communicate(b"print(__name__)"), child.returncode)
print(subprocess.run([sys.executable, "main.py"], capture_output=True).returncode
      if False else "not again")
