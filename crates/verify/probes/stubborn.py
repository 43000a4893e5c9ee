# Ignores every signal that can be ignored, leaves zombies, has a child that stopped, then stops.
import os
import signal

for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, signal.SIG_IGN)
for _ in range(8):
    if os.fork() == 0:
        os._exit(0)
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            signal.pause()
os.kill(os.getpid(), signal.SIGSTOP)
while True:
    signal.pause()
