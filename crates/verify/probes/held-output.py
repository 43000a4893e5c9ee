# A daemon in a session of its own keeps the output open when the program is over.
import os
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(0.05)
            os.write(2, b".")
    os._exit(0)
os.wait()
print("HELD the program is over", flush=True)
