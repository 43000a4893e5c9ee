f() {
  echo "$FUNCNAME $LINENO ${BASH_LINENO[@]} ${BASH_SOURCE[@]}"
  caller
  caller 0
  g
}
g() { caller 0; caller 1; caller 2; echo $?; }
f
