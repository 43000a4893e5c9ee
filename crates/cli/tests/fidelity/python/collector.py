# differs: gc.get_freeze_count
import gc

print(gc.get_freeze_count())
