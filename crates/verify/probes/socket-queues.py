# What waits in sockets is kernel memory that no control group counts: their number is bounded.
import ctypes
import errno
import resource
import socket
import struct
from probe import check, libc, verdict

ROUTE, DUMP_LINKS = 0, struct.pack("=LHHLL16x", 32, 18, 0x301, 1, 0)
MEMORY = 64 << 20
# An ordinary user, who maps one id only, may have no cgroup for memory: then it is a fixed number.
with open("/proc/self/uid_map") as ids:
    MOST = 256 if len(list(ids)) > 1 else 1024
# A call that was let pass and is not done yet is not counted, so there may be a few more.
SLACK = 16
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def until_refused(make, most=600):
    """Makes them until one is refused: all of them, and why."""
    made = []
    try:
        while len(made) < most:
            made.append(make())
    except OSError as error:
        return made, errno.errorcode.get(error.errno, str(error.errno))
    return made, "no error"


def route_socket():
    """A netlink socket with a queue that is full and never read."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, ROUTE)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    made.bind((0, 0))
    try:
        for _ in range(400):
            made.send(DUMP_LINKS)
    except OSError:
        pass
    return made


def queued():
    """Bytes in the queues of all netlink sockets here."""
    with open("/proc/self/net/netlink") as lines:
        return sum(int(line.split()[4]) for line in list(lines)[1:])


made, why = until_refused(route_socket)
check(f"{len(made)} netlink sockets, then {why}", why == "ENOBUFS" and len(made) <= 64 + SLACK)
check(f"{queued() >> 10} KiB in their queues", queued() < MEMORY // 2)
for one in made:
    one.close()

listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
address = listener.getsockname()
made, why = until_refused(lambda: socket.create_connection(address))
check(f"{len(made)} connections, then {why}", why == "ENOBUFS" and len(made) <= MOST // 2 + SLACK)
for one in made:
    one.close()
listener.close()

# One socket that connects again and again leaves one behind in the backlog each time.
again = socket.socket()
listeners = [socket.create_server(("127.0.0.1", 0), backlog=4096) for _ in range(4)]


def connect_again(count=iter(range(1 << 20))):
    again.connect(listeners[next(count) % 4].getsockname())
    again.send(b"x" * 1000)
    disconnect(again)


def disconnect(one):
    if libc.connect(one.fileno(), bytes(16), 16) != 0:
        raise OSError(ctypes.get_errno(), "disconnect")


made, why = until_refused(connect_again, 2000)
check(f"{len(made)} times again, then {why}", why == "ENOBUFS" and len(made) <= MOST + SLACK)
for one in listeners:
    one.close()

# An ordinary program asks for its interfaces as often as it likes.
for _ in range(300):
    socket.if_nameindex()
check("300 times the names of its interfaces", True)
verdict()
