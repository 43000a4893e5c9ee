import subprocess
import sys

done = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True)
print(done.returncode, done.stdout.strip())
script = "echo out; echo err >&2; exit 3"
done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
print(done.returncode, done.stdout.strip(), done.stderr.strip())
subprocess.run(["false"], check=True)
