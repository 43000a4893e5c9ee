set -m
sleep 0.05 &
cut -d" " -f5 /proc/$!/stat
wait
jobs
set +m
