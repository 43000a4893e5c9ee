cat > lib.sh <<'E'
echo "lib $LINENO ${BASH_SOURCE[@]} $0 $1"
return 5
E
source ./lib.sh arg; echo $?
. lib.sh; echo $?
source nosuch.sh; echo $?
return 3
echo "after return $?"
