# env: GREETING=hello there
mkdir -p a/b && echo one > a/b/f && cp -r a c && rm -r a
find c -type f | while read -r name; do echo "$name: $(cat "$name")"; done
test -d a && echo "still there" || echo "gone"
echo "$GREETING" | cut -d' ' -f2
no_such_command_here
