# The machine's name is the box's, and stays so.
import os
import socket
from probe import check, refused, syscall, verdict

name = socket.gethostname()
check(f"name {name}", name == "cloche")
check("domain", os.uname().nodename == "cloche")
refused("rename", "EPERM", syscall, "sethostname", b"host", 4)
refused("domain", "EPERM", syscall, "setdomainname", b"host", 4)
verdict()
