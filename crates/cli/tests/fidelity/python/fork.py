import atexit
import os
import sys
import threading

atexit.register(lambda: print("atexit", os.getpid() == parent))
parent = os.getpid()


class Loud:
    def __del__(self):
        print("del", os.getpid() == parent)


loud = Loud()
for code in (0, 3, "text", None):
    pid = os.fork()
    if pid == 0:
        sys.exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
pid = os.fork()
if pid == 0:
    raise ValueError("in the child")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
pid = os.fork()
if pid == 0:
    os._exit(5)
print(os.wait()[1] >> 8, os.getpid(), threading.main_thread().name)
pid = os.fork()
if pid == 0:
    print(os.getppid() == parent, os.getpid() != parent)
    os.kill(os.getpid(), 9)
print(os.waitpid(pid, 0)[1])
try:
    os.wait()
except ChildProcessError as error:
    print(error)
