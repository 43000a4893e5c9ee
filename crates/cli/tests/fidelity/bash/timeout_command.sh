timeout 0.1 sleep 5; echo $?
timeout -s KILL 0.1 sleep 5; echo $?
