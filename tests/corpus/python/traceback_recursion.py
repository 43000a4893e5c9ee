def down(n):
    return down(n + 1)


try:
    down(0)
except RecursionError as error:
    print(type(error).__name__, str(error)[:32])
down(0)
