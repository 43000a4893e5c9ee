# A socket with an abstract name, one with a path, and one on the loopback.
import os
import socket
from probe import planted, planting, refused, verdict

NAME = "\0" + os.environ["PROBE_NONCE"]


def connect(family, address):
    made = socket.socket(family)
    made.settimeout(1)
    made.connect(address)


if planting():
    held = []
    for family, address in [(socket.AF_UNIX, NAME), (socket.AF_UNIX, "/tmp/socket"),
                            (socket.AF_INET, ("127.0.0.1", 40123))]:
        held.append(socket.socket(family))
        held[-1].bind(address)
        held[-1].listen()
    planted()
else:
    refused("abstract", "ECONNREFUSED EPERM", connect, socket.AF_UNIX, NAME)
    refused("path", "ENOENT", connect, socket.AF_UNIX, "/tmp/socket")
    refused("loopback", "ECONNREFUSED", connect, socket.AF_INET, ("127.0.0.1", 40123))
    refused("the host's abstract", "ECONNREFUSED EPERM", connect, socket.AF_UNIX,
            "\0" + os.environ["PROBE_SOCKET"])
    verdict()
