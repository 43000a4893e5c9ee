if [ "${1-}" ]; then echo "child $1 $0 $SHLVL"; exit 4; fi
bash "$0" a; echo $?
chmod +x "$0"; "$0" b; echo $?
