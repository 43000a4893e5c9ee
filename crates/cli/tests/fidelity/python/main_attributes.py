"""A docstring."""
import sys

print(repr(__doc__))
for name in sorted(dir()):
    print(name, type(globals()[name]))
print(list(globals()))
x: int = 1
print(__annotations__)
