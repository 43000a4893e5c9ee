set -- -a -b val rest
while getopts "ab:" o; do echo "$o $OPTARG $OPTIND"; done
shift $((OPTIND-1)); echo "$@"
getopts x y; echo $?
