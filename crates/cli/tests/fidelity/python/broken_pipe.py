# each: signal.signal(signal.SIGPIPE, signal.SIG_DFL); os.write(end, b"x")
# each: os.write(end, b"x")
# each: os.dup2(end, 1); print("into nothing")
# each: os.dup2(end, 1); sys.stdout = open(1, "w"); print("held back")
# each: os.dup2(end, 1); sys.stdout.reconfigure(write_through=False); sys.stdout.write("x")
# each: os.dup2(end, 2); 1 / 0
# each: sys.stdout.close()
# each: sys.stdout.close(); sys.stderr.close(); 1 / 0
# each: sys.stdout.close(); print("never")
# each: os.close(1)
# each: os.close(1); print("never")
# each: os.close(1); os.close(2); 1 / 0
# each: sys.stdout = io.StringIO(); print("into a string"); sys.exit(3)
# each: sys.stdout = Loud(); print("loud"); sys.exit(3)
# each: sys.stdout = Failing(); sys.exit(3)
# each: sys.stdout = Failing()
# each: sys.stderr = Failing(); sys.exit("text")
# each: sys.stdout = open("/dev/full", "w"); print("full")
# each: sys.stdout = open("/dev/full", "w"); print("full"); sys.exit(4)
# each: sys.stdout = open("/dev/full", "w", buffering=1); print("full")
# each: sys.stdout = sys.__stdout__ = None
# each: sys.stdout.detach(); sys.exit(5)
import io
import os
import signal
import sys


class Loud(io.StringIO):
    def flush(self):
        os.write(1, b"flush\n")

    def __del__(self):
        os.write(1, b"gone\n")


class Failing:
    closed = False

    def write(self, text):
        os.write(1, text.encode())

    def flush(self):
        raise OSError("cannot flush")


start, end = os.pipe()
os.close(start)
EACH
