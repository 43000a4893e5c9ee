printf "%(%s)T" -1 | grep -cE "^[0-9]{10}$"
[ "${EPOCHREALTIME%.*}" = "$EPOCHSECONDS" ] && echo same
