import os

for root in (".", "/tmp", "/run", "/dev", "/var/tmp", "/home", "/"):
    print(root, sorted(os.listdir(root)))
status = os.stat("main.py")
print(oct(status.st_mode), status.st_uid, status.st_gid, status.st_nlink, status.st_size)
print(oct(os.stat(".").st_mode), os.stat(".").st_nlink, os.path.exists("__pycache__"))
mounts = [line.split(" - ") for line in open("/proc/self/mountinfo")]
print([(head.split()[3:6], tail.split()[0]) for head, tail in mounts])
print(open("/proc/net/dev").read().count("lo:"), os.uname().nodename)
