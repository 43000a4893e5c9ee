# Two cells with networks cannot reach each other, although both have the same address.
import os
import socket
import sys
from probe import check, verdict

PORT = 8099
if os.environ["PROBE_ROLE"] == "plant":
    listener = socket.create_server(("", PORT))
    print("READY", flush=True)
    sys.stdin.read()
    listener.settimeout(0.1)
    try:
        listener.accept()
        print("BROKE a neighbour connected", flush=True)
    except OSError:
        pass
else:
    for host in ["192.0.0.2", "192.0.0.1", "192.0.0.3", "192.0.0.6", "127.0.0.1"]:
        try:
            socket.create_connection((host, PORT), timeout=3).close()
            check(f"{host} is open", False)
        except OSError as error:
            check(f"{host}: {error.errno}", True)
    verdict()
