echo $$ $BASHPID $PPID
(:) & echo $!
/bin/true & echo $!
wait
echo $(sh -c "echo \$\$ \$PPID")
echo /proc/[0-9]*
