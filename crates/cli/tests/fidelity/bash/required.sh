echo before
: "${NEEDED:?must be set}"
echo after
