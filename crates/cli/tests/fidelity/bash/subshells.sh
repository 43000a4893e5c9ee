x=1; (x=2; echo "$x $BASH_SUBSHELL $$ $BASHPID"); echo "$x"
echo $(echo $BASHPID) $BASHPID
( exit 3 ); echo $?
{ echo group; }
