# With the network blocked nothing leaves: TCP, UDP, IPv6, names, metadata addresses.
import socket
from probe import check, refused, verdict


def connect(family, kind, *address):
    made = socket.socket(family, kind)
    made.settimeout(1)
    if kind == socket.SOCK_DGRAM:
        return made.sendto(b"x", address)
    return made.connect(address)


V4, V6, TCP, UDP = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM, socket.SOCK_DGRAM
NO = "ENETUNREACH EHOSTUNREACH EADDRNOTAVAIL EAFNOSUPPORT EPERM EACCES"
for host in ["1.1.1.1", "169.254.169.254", "10.0.0.1", "192.168.0.1", "100.64.0.1", "172.17.0.1"]:
    refused(f"tcp {host}", NO, connect, V4, TCP, host, 80)
    refused(f"udp {host}", NO, connect, V4, UDP, host, 53)
for host in ["2606:4700:4700::1111", "fd00:ec2::254", "fe80::1"]:
    refused(f"tcp {host}", NO + " EINVAL", connect, V6, TCP, host, 80)
    refused(f"udp {host}", NO + " EINVAL", connect, V6, UDP, host, 53)
refused("broadcast", NO, connect, V4, UDP, "255.255.255.255", 9)
refused("multicast", NO, connect, V4, UDP, "224.0.0.251", 5353)
try:
    socket.getaddrinfo("example.com", 80)
    check("a name was resolved", False)
except socket.gaierror as error:
    check(f"names: {error.args[1]}", True)
verdict()
