import atexit
import sys


@atexit.register
def bye():
    print("bye")


atexit.register(print, "last registered, first called")
sys.stdout.write("no newline at the end")
