# A crash leaves no image of memory, and starts no handler on the host.
import os
import resource
import signal
from probe import check, verdict

limit = resource.getrlimit(resource.RLIMIT_CORE)
# Exactly 1: a piped core_pattern ignores 0.
check(f"limit {limit}", limit == (1, 1))
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGSEGV)
_, ended = os.waitpid(child, 0)
check(f"signal {os.WTERMSIG(ended)}", os.WTERMSIG(ended) == signal.SIGSEGV)
check("no core was made", not os.WCOREDUMP(ended))
check("no file is left", not [name for name in os.listdir(".") if "core" in name])
verdict()
