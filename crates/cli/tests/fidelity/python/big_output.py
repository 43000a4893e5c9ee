import sys

line = "x" * 99 + "\n"
for _ in range(50_000):
    sys.stdout.write(line)
sys.stderr.write("y" * 1_000_000)
sys.stdout.buffer.write(b"\x00\xff" * 10)
