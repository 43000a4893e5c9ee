command -v bash nosuch; echo $?
type -t cd if ls nosuch
nosuch arg; echo $?
./nosuch; echo $?
touch f; ./f; echo $?
/tmp; echo $?
