# Files of the host: a secret planted for this probe, the usual prizes, an engine's socket.
import os
from probe import check, open_for, refused, verdict

read = open_for(os.O_RDONLY)
for path in [
    os.environ["PROBE_SECRET"],
    "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh", "/root/.ssh", "/root/.bash_history",
    "/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock",
    "/run/podman/podman.sock", "/run/dbus/system_bus_socket", "/run/systemd/private",
    "/var/lib/docker", "/var/log/syslog", "/boot", "/sys/class", "/sys/fs/cgroup",
]:
    refused(path, "ENOENT EACCES", read, path)
with open("/etc/passwd") as lines:
    names = [line.split(":")[0] for line in lines]
check(f"users {names}", names == ["root", "baponi", "nobody"])
for place in ["/tmp", "/dev/shm", "/run/secrets", "/run/trust", "/var/lib", "/mnt", "/media", "/srv", "/data", "/sys"]:
    check(f"{place} {os.listdir(place)}", os.listdir(place) == [])
check(f"/run {os.listdir('/run')}", sorted(os.listdir("/run")) == ["cloche", "secrets", "trust"])
verdict()
