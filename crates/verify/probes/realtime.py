# Real-time scheduling would starve the neighbours past any quota; so would a better priority.
import os
import resource
from probe import check, refused, verdict

limit = resource.getrlimit(resource.RLIMIT_RTPRIO)
check(f"limit {limit}", limit == (0, 0))
policy, nice = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
check(f"policy {policy} nice {nice}", policy in (os.SCHED_OTHER, os.SCHED_BATCH) and nice >= 0)
for name in ["SCHED_FIFO", "SCHED_RR"]:
    parameters = os.sched_param(1)
    refused(name, "EPERM", os.sched_setscheduler, 0, getattr(os, name), parameters)
refused("nice -5", "EPERM EACCES", os.setpriority, os.PRIO_PROCESS, 0, -5)
verdict()
