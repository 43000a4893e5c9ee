env
echo
export -p
echo
declare -x
