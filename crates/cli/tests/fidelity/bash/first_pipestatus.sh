# differs: PIPESTATUS before the first command
echo "<${PIPESTATUS[*]}>"
