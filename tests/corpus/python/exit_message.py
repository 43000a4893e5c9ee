import sys

sys.exit("error: no input file given")
