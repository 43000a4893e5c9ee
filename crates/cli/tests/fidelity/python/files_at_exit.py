import atexit
import os

left = open("left.txt", "w")
left.write("flushed when it goes")
nested = {"a": [open("nested.txt", "w")]}
nested["a"][0].write("nested")


class Holder:
    pass


holder = Holder()
holder.me = holder
holder.file = open(os.dup(1), "w")
holder.file.write("through a cycle\n")
buffered = open(os.dup(1), "w")
buffered.write("buffered at the end\n")
binary = open(os.dup(1), "wb")
binary.write(b"binary at the end\n")
open("unreferenced.txt", "w").write("closed at once")
print(open("unreferenced.txt").read())
import tempfile

directory = tempfile.TemporaryDirectory()
temporary = tempfile.NamedTemporaryFile("w")
temporary.write("x")
print("the end")
