shopt -s extdebug
f() { echo "${BASH_ARGV[@]} | ${BASH_ARGC[@]}"; declare -F f; }
f a b c
