echo one
echo two
if true; then
  echo three
fi)
echo four
