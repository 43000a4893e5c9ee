import os
import signal

signal.signal(signal.SIGUSR1, lambda number, frame: print("got", signal.Signals(number).name))
os.kill(os.getpid(), signal.SIGUSR1)
signal.setitimer(signal.ITIMER_REAL, 0.01)
try:
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("too slow")))
    signal.pause()
except TimeoutError as error:
    print(error)
os.kill(os.getpid(), signal.SIGTERM)
