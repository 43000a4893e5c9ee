import sys

if sys.version_info < (3, 10):
    print("no match statement")
    sys.exit()
exec("""
def describe(shape):
    match shape:
        case {"kind": "circle", "r": r}:
            return f"circle {r}"
        case [x, y]:
            return f"point {x},{y}"
        case int() | float() as number if number > 10:
            return f"large {number}"
        case _:
            return "unknown"
for shape in ({"kind": "circle", "r": 2}, (1, 2), 50, "x"):
    print(describe(shape))
""")
