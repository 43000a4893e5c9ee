import sys

seen = []


def trace(frame, event, argument):
    seen.append((event, frame.f_code.co_name, frame.f_lineno))
    return trace


def traced():
    x = 1
    return x


sys.settrace(trace)
traced()
sys.settrace(None)
print(seen)
profile = []
sys.setprofile(lambda frame, event, argument: profile.append((event, frame.f_code.co_name)))
traced()
sys.setprofile(None)
print(profile)


def at_exit_trace(frame, event, argument):
    print("trace", event, frame.f_code.co_name)


import atexit

atexit.register(traced)
sys.settrace(at_exit_trace)
