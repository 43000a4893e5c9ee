import sys

print("partial result")
if len(sys.argv) == 1:
    sys.exit(3)
