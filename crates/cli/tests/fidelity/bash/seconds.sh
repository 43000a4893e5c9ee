echo "$SECONDS"
now=$(date +%s)
(( now - $(printf '%(%s)T' -2) <= 1 )) && echo recent
sleep 1.1
echo "$SECONDS"
SECONDS=5
echo "$SECONDS"
