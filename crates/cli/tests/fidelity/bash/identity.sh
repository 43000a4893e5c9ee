echo "$0|$#|$*|$-|$$|$PPID|$BASHPID|$SHLVL|$BASH_SUBSHELL|$_"
echo "${BASH_SOURCE[@]}|$LINENO|${FUNCNAME[@]}|${BASH_LINENO[@]}|${BASH_EXECUTION_STRING-none}"
echo "$?|$!|${BASH_ARGV[@]}|${BASH_ARGC[@]}|${BASH_ENV-none}|${ENV-none}|$OPTIND|$OPTERR"
echo "$IFS" | od -c
echo "$UID $EUID ${GROUPS[@]} $HOSTNAME $OSTYPE $MACHTYPE $BASH $BASH_VERSION"
