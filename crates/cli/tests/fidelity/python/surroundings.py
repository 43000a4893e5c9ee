import os

for root in (".", "/tmp", "/run", "/dev", "/var/tmp", "/home", "/"):
    print(root, sorted(os.listdir(root)))
status = os.stat("main.py")
print(oct(status.st_mode), status.st_uid, status.st_gid, status.st_nlink, status.st_size)
print(oct(os.stat(".").st_mode), os.stat(".").st_nlink, os.path.exists("__pycache__"))
print(open("/proc/net/dev").read().count("lo:"), os.uname().nodename)
