# differs: PIPESTATUS before the first command
declare -p
