f() { (( $1 > 0 )) && f $(( $1 - 1 )) || echo "bottom ${#FUNCNAME[@]}"; }
f 300
FUNCNEST=5
f 10
echo $?
