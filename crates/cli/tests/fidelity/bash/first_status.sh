echo "$?"
