import gc
import os

if os.fork() == 0:
    file = open("left.txt", "w")
    file.write("written")
    gc.freeze()
else:
    print(os.wait()[1], open("left.txt").read())
