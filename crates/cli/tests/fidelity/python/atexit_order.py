import atexit
import sys

for name in "abc":
    atexit.register(print, name)


@atexit.register
def last_registered():
    print("finalizing", sys.is_finalizing())
    atexit.register(print, "registered while exiting")


def raises():
    raise ValueError("in atexit")


def exits():
    sys.exit(9)


atexit.register(raises)
atexit.register(exits)
atexit.register(print, "unregistered")
print("the end")
