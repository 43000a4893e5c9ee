# Two cells at once: whatever should be random differs.
import os
import random
import secrets
import uuid
from probe import check, planted, planting, verdict

values = [random.random(), secrets.token_hex(8), uuid.uuid4().hex, os.urandom(8).hex()]
try:
    import ssl

    values.append(ssl.RAND_bytes(8).hex())
except ImportError:
    pass
text = [str(value) for value in values]
if planting():
    planted(",".join(text))
else:
    found = os.environ["PROBE_FOUND"].split(",")
    same = [name for name, one, other in zip("random secrets uuid urandom ssl".split(), text, found)
            if one == other]
    check(f"the same in both: {same}", not same)
    verdict()
