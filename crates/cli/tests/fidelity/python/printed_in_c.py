import ctypes

ctypes.CDLL(None).printf(b"printed in C, and not flushed\n")
print("printed in Python")
