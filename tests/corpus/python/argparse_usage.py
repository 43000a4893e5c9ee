import argparse

parser = argparse.ArgumentParser(prog="tool", description="Adds numbers.")
parser.add_argument("numbers", nargs="+", type=int)
parser.add_argument("--scale", type=float, default=1.0)
options = parser.parse_args(["1", "2", "--scale", "2.5"])
print(sum(options.numbers) * options.scale)
parser.parse_args(["one"])
