# stdin: "first\nsecond ä\n\nlast without end"
import sys

print(input("prompt> "), repr(input()), sys.stdin.readline().encode())
print(sys.stdin.encoding, sys.stdin.errors, sys.stdin.isatty(), sys.stdin.fileno())
for line in sys.stdin:
    print(repr(line))
try:
    input("more> ")
except EOFError as error:
    print("EOF", error)
print(repr(sys.stdin.read()))
