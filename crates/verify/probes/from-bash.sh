# The same walls from a shell, with the tools of the image.
broken=()
try() { if "${@:2}" >/dev/null 2>&1 </dev/null; then broken+=("$1 worked"); fi; }
try "reading the secret" cat "$PROBE_SECRET"
try "reading shadow" cat /etc/shadow
try "mount" mount -t tmpfs x /tmp
try "unshare" unshare --user --map-root-user true
try "chroot" chroot /tmp true
try "su" su -c true
try "mknod" mknod /tmp/kmsg c 1 11
try "dmesg" dmesg
try "the host's port" bash -c "exec 9<>/dev/tcp/127.0.0.1/$PROBE_PORT"
try "outside" bash -c "exec 9<>/dev/tcp/1.1.1.1/53"
try "signal to the host" kill -0 "$PROBE_HOST_PID"
try "write to /proc/sys" bash -c 'echo x >/proc/sys/kernel/hostname'
try "link into the host" ln /usr/bin/env /tmp/env
try "swap" swapon /tmp/x
if [ ${#broken[@]} -gt 0 ]; then printf 'BROKE '; printf '%s; ' "${broken[@]}"; echo; else echo "HELD all refused"; fi
