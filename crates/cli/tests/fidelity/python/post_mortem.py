# stdin: "w\nq\n"
import pdb
import sys

try:
    1 / 0
except ZeroDivisionError:
    pdb.post_mortem(sys.exc_info()[2])
print("after")
