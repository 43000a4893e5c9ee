read -r -t 0.05 x; echo $?
[ -t 0 ] || echo no tty
