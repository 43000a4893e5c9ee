eval "if"
echo $?
bash -c "fi"
echo $?
