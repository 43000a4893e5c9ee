import gc
import sys
import weakref


class Cache:
    def __del__(self):
        print("cache gone")


cache = Cache()
reference = weakref.ref(cache, lambda _: print("reference dead"))
print(reference() is cache)
del cache
gc.collect()
print(reference())
kept = Cache()
sys.stdout.flush()
