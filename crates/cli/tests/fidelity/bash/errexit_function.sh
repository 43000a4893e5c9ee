set -Eeuo pipefail
trap 'echo "ERR $? line $LINENO: $BASH_COMMAND"' ERR
f() {
  echo in
  false | true
}
f
echo after
