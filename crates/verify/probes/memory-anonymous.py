# 300 MiB of pages where 128 are allowed.
held = [bytearray(b"x" * (1 << 20)) for _ in range(300)]
print("BROKE", len(held), "MiB held")
