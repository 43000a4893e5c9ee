import os
import sys

print("ä ☃ 😀", ascii("ä"), sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors)
print("\udce4".encode("utf-8", "surrogateescape"), os.fsencode("ä\udcff"), sys.getdefaultencoding())
open("n\udcffame", "w").close()
print([name for name in os.listdir() if "ame" in name], os.listdir(b"."))
print(open("main.py").encoding, sys.getfilesystemencodeerrors(), sys.flags.utf8_mode)
sys.stdout.buffer.write(b"\xff raw\n")
print("\ud800", file=sys.stderr)
try:
    print("\ud800")
except UnicodeEncodeError as error:
    print(error)
sys.stdout.reconfigure(encoding="latin-1", errors="replace")
print("ä ☃")
print("\udce4")
