RANDOM=1; echo $RANDOM $RANDOM
[ "$SRANDOM" != "$SRANDOM" ] && echo differ
