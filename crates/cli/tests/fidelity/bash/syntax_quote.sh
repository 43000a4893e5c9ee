echo one
echo 'two
three
