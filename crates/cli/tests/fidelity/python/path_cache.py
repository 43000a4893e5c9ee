import sys

print(list(sys.path_importer_cache))
import this_is_not_there_at_all
