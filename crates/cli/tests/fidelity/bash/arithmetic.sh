echo $((1/0))
echo after
echo $((08))
let x=3*4; echo $x
((x++)); echo $x
echo $((2**63)) $((16#ff))
for ((i=0;i<3;i++)); do echo -n $i; done; echo
