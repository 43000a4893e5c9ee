import atexit

atexit.register(print, "once only")
atexit._run_exitfuncs()
print("goes on")


def unregistered():
    print("never")


atexit.register(unregistered)
atexit.unregister(unregistered)
