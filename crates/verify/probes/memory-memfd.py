# 300 MiB in a file without a name where 128 are allowed.
import os

made = os.memfd_create("held")
for _ in range(300):
    os.write(made, b"x" * (1 << 20))
print("BROKE 300 MiB held")
