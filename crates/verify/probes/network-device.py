# The device of a network cell is the worker's: no raw packets, no change of it, no other device.
import fcntl
import os
import socket
import struct
from probe import check, open_for, refused, verdict

NO = "EPERM EACCES EPROTONOSUPPORT EAFNOSUPPORT ESOCKTNOSUPPORT ENOSYS EINVAL"
refused("raw", NO, socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
refused("raw6", NO, socket.socket, socket.AF_INET6, socket.SOCK_RAW, 58)
refused("ping", NO, socket.socket, socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
refused("packet", NO, socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 3)
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for what, number, data in [
    ("down", 0x8914, struct.pack("16sH22x", b"net0", 0)),
    ("mtu", 0x8922, struct.pack("16si20x", b"net0", 9000)),
    ("address", 0x8916, struct.pack("16sHH4s16x", b"net0", 2, 0, socket.inet_aton("10.0.0.2"))),
    ("rename", 0x8923, struct.pack("16s16s8x", b"net0", b"eth9")),
]:
    refused(what, NO, fcntl.ioctl, plain, number, data)
refused("device node", "ENOENT EACCES", open_for(os.O_RDWR), "/dev/net/tun")
refused("bind to a foreign address", "EADDRNOTAVAIL", plain.bind, ("5.5.5.5", 0))
names = sorted(name for _, name in socket.if_nameindex())
check(f"devices: {names}", names == ["lo", "net0"])
with open("/etc/resolv.conf") as resolver:
    servers = [line for line in resolver if line.startswith("nameserver")]
check(f"one resolver: {servers}", servers == ["nameserver 192.0.0.1\n"])
refused("resolv.conf", "EACCES EROFS EPERM", open_for(os.O_WRONLY), "/etc/resolv.conf")
verdict()
