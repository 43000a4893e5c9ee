"""A first program: says where it runs, and what it cannot do there."""

import os
import platform
import socket

print(f"Hello from Python {platform.python_version()}, process {os.getpid()} of this sandbox.")
try:
    socket.create_connection(("1.1.1.1", 53), timeout=2).close()
    print("This sandbox may use the network.")
except OSError as error:
    print(f"This sandbox has no network: {error}.")
