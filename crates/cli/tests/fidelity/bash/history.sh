history
echo $?
set -o history; echo a; history
fc -l
