set -u
echo "${x-unset}"
echo "$x"
echo after
