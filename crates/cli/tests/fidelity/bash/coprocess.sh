coproc C { while read -r line; do echo "got $line"; done; }
p=$C_PID
echo a >&"${C[1]}"
read -r x <&"${C[0]}"; echo "$x"
eval "exec ${C[1]}>&-"
wait $p; echo $?
