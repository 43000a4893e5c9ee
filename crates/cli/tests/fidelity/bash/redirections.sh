exec 3>out 4<&0
echo a >&3
exec 3>&-
cat out
echo x > /nosuch/file; echo $?
{ echo o; echo e >&2; } 2>&1 | sort
cat < nosuch
echo a &> both; cat both
set -C; echo b > both; echo $?
echo >&9
