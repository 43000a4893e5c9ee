# each: os._exit(3)
# each: os.abort()
# each: os.kill(os.getpid(), 9)
# each: os.execv("/bin/true", ["true"])
# each: ctypes.string_at(0)
# each: 1 / 0
# each: sys.exit(2)
import ctypes
import os
import sys

kept = open("buffered.txt", "w")
kept.write("held back")
sys.stdout.write("no newline, no flush")
sys.stderr.write("stderr too")
duplicate = open(os.dup(1), "w")
duplicate.write("in a buffer of its own")
EACH
