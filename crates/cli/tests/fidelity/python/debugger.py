# stdin: "n\np x\nw\nc\n"
def f():
    x = 1
    breakpoint()
    return x


f()
