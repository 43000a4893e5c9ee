sleep 5 & kill $!; wait $!; echo $?
bash -c "kill -KILL \$\$"; echo $?
(kill -TERM $BASHPID); echo $?
