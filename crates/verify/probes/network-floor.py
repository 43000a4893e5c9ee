# An unrestricted network reaches no private, metadata or host address, in no spelling. Nothing of
# this is sent: the broker refuses before it dials.
import socket
from probe import check, refused, verdict


def connect(host, port):
    socket.create_connection((host, port), timeout=5).close()


NO = "ECONNREFUSED ENETUNREACH EHOSTUNREACH EADDRNOTAVAIL EAFNOSUPPORT ECONNRESET EACCES EINVAL"
with open("/proc/net/dev") as devices:
    check("it has a device", "net0:" in devices.read())
for host in ["169.254.169.254", "10.0.0.1", "172.17.0.1", "192.168.0.1", "100.64.0.1", "0.0.0.1",
             "198.18.0.1", "240.0.0.1", "192.0.0.8", "2852039166", "0xa9.254.43518",
             "0251.0376.0251.0376"]:
    for port in [80, 443]:
        refused(f"tcp {host}:{port}", NO, connect, host, port)
for host in ["::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "fd00:ec2::254",
             "fe80::1", "2001:0:a9fe:a9fe::1", "64:ff9b:1::1"]:
    refused(f"tcp {host}", NO + " ENODEV", connect, host, 80)
for host in ["169.254.169.254", "10.0.0.1", "224.0.0.251", "255.255.255.255"]:
    flow = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    flow.settimeout(1)
    try:
        flow.connect((host, 53))
        flow.send(b"x" * 20)
        flow.recv(100)
        check(f"udp {host} was answered", False)
    except OSError as error:
        check(f"udp {host}: {type(error).__name__}", True)
refused("mail", NO, connect, "192.0.0.1", 25)
verdict()
