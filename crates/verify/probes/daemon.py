# A daemon, forked twice and in a session of its own, with a file and a socket open.
import os
import socket
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(3):
            os.close(number)
        held = socket.socket(socket.AF_UNIX)
        held.bind("\0daemon")
        os.mkfifo("/tmp/pipe")
        time.sleep(60)
    os._exit(0)
os.wait()
print("HELD the program is over")
