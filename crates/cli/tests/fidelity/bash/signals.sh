# each: TERM
# each: KILL
# each: INT
# each: HUP
# each: PIPE
# each: ABRT
# each: SEGV
# each: QUIT
echo before
kill -EACH $$
sleep 0.05
echo after
