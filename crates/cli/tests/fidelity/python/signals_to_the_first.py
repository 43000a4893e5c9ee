import os

# Whether it may be sent or not: no process is harmed, here or in the next run.
for signal in (1, 2, 3, 10, 15, 34, 64):
    try:
        os.kill(1, signal)
    except PermissionError:
        pass
print("still here")
