# stdin: "1 + 1\n1 / 0\nprint(__name__)\n"
import code

code.interact(banner="", exitmsg="", local={"__name__": "__console__"})
print("after")
