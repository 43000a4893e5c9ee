# lines: dos
echo a
if true; then
echo b
fi
