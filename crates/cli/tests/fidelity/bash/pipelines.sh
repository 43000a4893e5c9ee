false | true | (exit 3); echo "${PIPESTATUS[@]}"
set -o pipefail; false | true; echo $?
shopt -s lastpipe; echo a | read -r x; echo "$x"
yes | head -1
seq 100000 | tail -1
! true | false; echo $?
