# 256 MiB without a newline, with bytes that are no text, while the reader keeps 1 MiB.
import os

block = bytes(range(256)) * 4096
for _ in range(256):
    left = memoryview(block)
    while left:
        left = left[os.write(1, left):]
