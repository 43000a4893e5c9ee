echo one
echo "echo appended" >> "$0"
echo two
