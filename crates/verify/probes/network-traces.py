# Packets on one's own loopback: no other run has a network that counts them.
import socket
from probe import check, planted, planting, verdict

if planting():
    ours = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ours.bind(("127.0.0.1", 0))
    ours.sendto(b"a trace", ours.getsockname())
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    planted()
else:
    with open("/proc/net/dev") as lines:
        loopback = [line.split(":")[1].split() for line in lines if line.strip().startswith("lo:")]
    check("no packet was ever sent here", loopback and not any(map(int, sum(loopback, []))))
    with open("/proc/net/snmp") as lines:
        names, counts = [line.split()[1:] for line in lines if line.startswith("Udp:")]
    check("no datagram was ever counted here", not any(map(int, counts)))
    with open("/proc/net/unix") as lines:
        check("no socket is left here", len(list(lines)) == 1)
    verdict()
