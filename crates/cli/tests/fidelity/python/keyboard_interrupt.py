import os
import signal
import sys

try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("caught")
signal.signal(signal.SIGTERM, lambda number, frame: print("handler", number, frame.f_code.co_name))
os.kill(os.getpid(), signal.SIGTERM)
signal.alarm(1)
signal.signal(signal.SIGALRM, lambda *a: print("alarm"))
signal.pause()
print(signal.sigwait.__name__, signal.siginterrupt(signal.SIGUSR1, False))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
os.kill(os.getpid(), signal.SIGUSR2)
print(signal.sigpending(), signal.sigwait([signal.SIGUSR2]))
signal.signal(signal.SIGCHLD, lambda *a: print("child"))
if os.fork() == 0:
    os._exit(3)
print(os.wait()[1])
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGINT)
