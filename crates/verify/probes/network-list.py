# An allowlist opens no way round it: addresses, other names, other resolvers, UDP, DoT. Nothing of
# this is sent: no rule covers it.
import socket
import struct
from probe import check, refused, verdict


def connect(host, port):
    socket.create_connection((host, port), timeout=5).close()


def ask(name, kind, server, tcp=False):
    """The code of an answer; None without one."""
    labels = b"".join(bytes([len(part)]) + part for part in name.split(b"."))
    query = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + labels + b"\0" + struct.pack("!HH", kind, 1)
    flow = socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
    flow.settimeout(2)
    try:
        flow.connect((server, 53))
        flow.send(struct.pack("!H", len(query)) + query if tcp else query)
        answer = flow.recv(2048)[2 if tcp else 0:]
        return (answer[3] & 15, struct.unpack("!H", answer[6:8])[0]) if len(answer) > 8 else None
    except OSError:
        return None


NO = "ECONNREFUSED ENETUNREACH EHOSTUNREACH ECONNRESET EACCES"
for host in ["1.1.1.1", "8.8.8.8", "93.184.216.34"]:
    for port in [53, 80, 443, 853, 22, 8443]:
        refused(f"tcp {host}:{port}", NO, connect, host, port)
for name in [b"example.com", b"allowed.invalid.evil.example", b"evilallowed.invalid", b"invalid",
             b"allowed\0.invalid", b"a" * 60 + b".exfiltrated.example"]:
    for tcp in [False, True]:
        answer = ask(name, 1, "192.0.0.1", tcp)
        check(f"{name!r} over {'tcp' if tcp else 'udp'}: {answer}", answer is None or answer[1] == 0)
for kind in [16, 64, 65, 255, 28]:
    answer = ask(b"allowed.invalid", kind, "192.0.0.1")
    check(f"type {kind}: {answer}", answer is None or answer[1] == 0)
for server in ["1.1.1.1", "8.8.8.8"]:
    check(f"the resolver {server} does not answer", ask(b"example.com", 1, server) is None)
    flow = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    flow.settimeout(1)
    try:
        flow.connect((server, 443))
        flow.send(b"\xc0" + b"x" * 1200)
        flow.recv(100)
        check("QUIC was answered", False)
    except OSError as error:
        check(f"QUIC {server}: {type(error).__name__}", True)
verdict()
