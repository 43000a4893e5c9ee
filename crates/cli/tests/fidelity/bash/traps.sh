trap 'echo "EXIT $?"' EXIT
trap 'echo INT' INT
trap 'echo "USR1 $?"' USR1
trap 'echo "DEBUG $BASH_COMMAND"' DEBUG
trap
kill -USR1 $$
kill -INT $$
f() { trap "echo RETURN" RETURN; echo f; }
f
exit 3
