f=$(mktemp); [ -f "$f" ] && echo made; rm "$f"
ls -A /tmp
echo "${TMPDIR-none}"
