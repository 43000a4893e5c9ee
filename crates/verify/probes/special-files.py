# Names and kinds that trip a cleanup: odd names, pipes, sockets, loops, deep trees.
import os
import socket
from probe import check, verdict

for name in [b"...", b"-rf", b"a\nb", b"\xff\xfe", b"\x1b[2J", b"x" * 255, b"CON", b"a\\b"]:
    open(name, "w").close()
os.mkfifo("pipe")
socket.socket(socket.AF_UNIX).bind("socket")
os.symlink("loop", "loop")
os.symlink("/etc/shadow", "shadow")
os.symlink(os.environ["PROBE_SECRET"], "secret")
os.mkdir("locked")
open("locked/file", "w").close()
os.chmod("locked", 0)
for _ in range(200):
    os.mkdir("deep")
    os.chdir("deep")
check("planted", True)
verdict()
