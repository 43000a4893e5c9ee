import ctypes
import datetime
import decimal
import sqlite3
import zoneinfo

print(ctypes.CDLL(None).abs(-3), ctypes.sizeof(ctypes.c_long), ctypes.util if hasattr(ctypes, "util") else "")
print(datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Paris")).isoformat())
db = sqlite3.connect(":memory:")
print(db.execute("select 6 * 7").fetchone(), sqlite3.threadsafety)
print(decimal.getcontext(), decimal.Decimal(1) / 3)
import socket

left, right = socket.socketpair()
left.send(b"x")
print(right.recv(1), socket.gethostname())
callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: 2 * x)
print(callback(21), ctypes.get_errno())
import hashlib, zlib, lzma, bz2, ssl, select, mmap, array, struct

print(hashlib.md5(b"").hexdigest(), sorted(hashlib.algorithms_available)[:3], ssl.OPENSSL_VERSION)
