(sleep 0.1; echo late) &
echo early
wait
