import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--number", type=int)
print(parser.parse_args())
parser.parse_args(["--number", "x"])
