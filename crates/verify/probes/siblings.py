# A forked cell is a copy of its template, which keeps a room of memory for each of its cells: those
# rooms are not in the copy, so that it does not see how many others there are.
import ctypes
from probe import check, verdict

PAGE = 4096
# Where the plan of a cell lies in its room, and what it begins with. Not the words as they are: this
# program has those in its own memory.
PLAN, WORDS = 1024 + 8, b"o`ldrq`bd;bfsntq"


def is_room(page):
    """Whether a page is the first of a room."""
    return bytes(byte ^ 1 for byte in ctypes.string_at(page + PLAN, len(WORDS))) == WORDS


rooms = 0
with open("/proc/self/maps") as lines:
    mappings = [line.split() for line in lines]
for place, rights, *_, inode in (mapping[:5] for mapping in mappings if len(mapping) == 5):
    start, end = (int(address, 16) for address in place.split("-"))
    if rights.startswith("rw-p") and inode == "0":
        rooms += sum(map(is_room, range(start, end - PLAN - len(WORDS), PAGE)))
check(f"{rooms} rooms of cells in sight", rooms == 0)
verdict()
