import sys


def depth(n):
    try:
        return depth(n + 1)
    except RecursionError as error:
        return n, str(error)


print(depth(0))
sys.setrecursionlimit(200)
print(depth(0), sys.getrecursionlimit())
sys.setrecursionlimit(20000)
print(depth(0))
