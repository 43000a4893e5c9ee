import os
import random
import sys

os.register_at_fork(before=lambda: print("before"), after_in_parent=lambda: print("parent"),
                    after_in_child=lambda: print("child"))
if os.fork() == 0:
    sys.exit()
os.wait()
random.seed(1)
print(random.random(), random.getstate()[1][0])
