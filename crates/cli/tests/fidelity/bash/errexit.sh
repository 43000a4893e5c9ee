set -e
false || echo kept
if false; then :; fi
echo before
false
echo after
