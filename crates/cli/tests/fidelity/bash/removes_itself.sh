rm "$0"
ls
echo still
