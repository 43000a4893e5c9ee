import os
import random
import sys

os.register_at_fork(before=lambda: os.write(1, b"before\n"), after_in_parent=os.wait,
                    after_in_child=lambda: os.write(1, b"child\n"))
if os.fork() == 0:
    sys.exit()
random.seed(1)
print(random.random(), random.getstate()[1][0])
