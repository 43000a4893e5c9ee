# 300 MiB of files in memory where 128 are allowed; the disk limit would let them pass.
with open("/dev/shm/file", "wb") as file:
    for _ in range(300):
        file.write(b"x" * (1 << 20))
print("BROKE 300 MiB held")
