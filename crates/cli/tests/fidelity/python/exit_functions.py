# differs: atexit._ncallbacks
import atexit

print(atexit._ncallbacks())
