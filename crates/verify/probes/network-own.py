# It has a loopback of its own, which works, and no other interface; the host's is another.
import os
import socket
import threading
from probe import check, refused, verdict

names = [name for _, name in socket.if_nameindex()]
check(f"interfaces {names}", names == ["lo"])
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b"!"), daemon=True).start()
try:
    good = socket.create_connection(server.getsockname(), timeout=2).recv(1) == b"!"
except OSError as error:
    good = False
check("its own loopback", good)
for host in ["127.0.0.1", "0.0.0.0", "::1", "localhost"]:
    refused(f"the host's port at {host}", "ECONNREFUSED EADDRNOTAVAIL EAFNOSUPPORT",
            socket.create_connection, (host, int(os.environ["PROBE_PORT"])), 2)
with open("/proc/net/route") as lines:
    check("no route", len(list(lines)) <= 1)
verdict()
