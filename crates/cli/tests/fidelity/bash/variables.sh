# All variables but those that differ from run to run or are documented.
:
declare -p | grep -vE ' (BASHPID|EPOCH[A-Z]*|RANDOM|SRANDOM|SECONDS|BASH_ARGC|_)(=|$)'
set | grep -vE '^(BASHPID|EPOCH[A-Z]*|RANDOM|SRANDOM|SECONDS|BASH_ARGC|_)='
