import sys


class Loud:
    def __init__(self, name):
        self.name = name
        self.me = self

    def __del__(self):
        print("gone", self.name)


for name in "abc":
    Loud(name)
main = sys.modules["__main__"]
del name
d = Loud("d")
_e = Loud("_e")


def uses():
    return d
