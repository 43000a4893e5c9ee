(( SECONDS <= 1 )) && echo begins
now=$(date +%s)
(( now - $(printf '%(%s)T' -2) <= 1 )) && echo recent
sleep 1.1
(( SECONDS >= 1 && SECONDS <= 3 )) && echo later
SECONDS=5
(( SECONDS >= 5 && SECONDS <= 6 )) && echo assigned
