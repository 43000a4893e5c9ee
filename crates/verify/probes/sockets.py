# Kinds of sockets beyond TCP, UDP, local ones and what getifaddrs needs.
import socket
from probe import refused, syscall, verdict

UNIX, INET, INET6, NETLINK, PACKET, VSOCK, ALG, BLUETOOTH, TIPC, XDP = 1, 2, 10, 16, 17, 40, 38, 31, 30, 44
STREAM, DGRAM, RAW, SEQPACKET = 1, 2, 3, 5
NO = "EPERM EAFNOSUPPORT EPROTONOSUPPORT ESOCKTNOSUPPORT"
for what, *args in [
    ("vsock", VSOCK, STREAM, 0), ("vsock with high bits", VSOCK | 1 << 32, STREAM, 0),
    ("packet", PACKET, RAW, 0x300), ("alg", ALG, SEQPACKET, 0), ("raw", INET, RAW, 1), ("raw v6", INET6, RAW, 58),
    ("ping", INET, DGRAM, 1), ("sctp", INET, STREAM, 132), ("mptcp", INET, STREAM, 262),
    ("bluetooth", BLUETOOTH, RAW, 1), ("tipc", TIPC, SEQPACKET, 0), ("xdp", XDP, RAW, 0),
    ("old packet", INET, 10, 0x300),
    *((f"netlink {number}", NETLINK, RAW, number) for number in (2, 4, 6, 9, 11, 12, 15, 16, 21)),
]:
    refused(what, NO, syscall, "socket", *args)
# What getifaddrs needs works, and shows its own interfaces.
socket.socket(NETLINK, socket.SOCK_RAW, 0).close()
verdict()
