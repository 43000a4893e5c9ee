# A file of one TiB that holds nothing costs nothing; filling it ends at the limit.
import errno
import os
from probe import check, verdict

made = os.open("/tmp/sparse", os.O_RDWR | os.O_CREAT)
os.ftruncate(made, 1 << 40)
check(f"{os.fstat(made).st_blocks} blocks", os.fstat(made).st_blocks == 0)
try:
    os.posix_fallocate(made, 0, 1 << 30)
    check("1 GiB allocated", False)
except OSError as error:
    check(f"allocating: {errno.errorcode[error.errno]}", error.errno == errno.ENOSPC)
verdict()
