# Each process has limits of its own, besides those of its cell.
import resource
from probe import check, verdict

for name, most in [("RLIMIT_CPU", 1000), ("RLIMIT_FSIZE", 1 << 40), ("RLIMIT_NPROC", 1024)]:
    soft, hard = resource.getrlimit(getattr(resource, name))
    check(f"{name} {soft} {hard}", 0 < soft <= hard <= most)
verdict()
