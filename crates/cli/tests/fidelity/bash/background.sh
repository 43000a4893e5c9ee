sleep 0.1 & echo "$!"
jobs
wait; echo $?
(exit 4) & wait $!; echo $?
{ sleep 0.05; echo late; } &
wait -n; echo $?
wait 12345; echo $?
fg
