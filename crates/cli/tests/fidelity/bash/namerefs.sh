f() { local -n r=$1; r=changed; }
v=1; f v; echo $v
declare -i n=3+4; echo $n
declare -l low=ABC; echo $low
local x 2>&1; echo $?
