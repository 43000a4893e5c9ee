ulimit -a | grep -v "pending\|processes"
umask
umask 077; touch f; stat -c %a f
