set -T
trap 'echo "$LINENO: $BASH_COMMAND"' DEBUG
x=1
f() { echo in f; }
f
echo $(echo sub)
