set -x
a=1
b=$((a + 1))
for i in 1 2; do echo $i; done
f() { echo "$@"; }
f x "y z"
[[ $a == 1 ]] && (( b == 2 ))
