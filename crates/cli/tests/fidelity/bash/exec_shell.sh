echo "$SHLVL $_"
exec bash -c 'echo "$SHLVL $0 $$ $PPID"; env'
