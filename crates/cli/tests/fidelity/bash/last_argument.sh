echo "$_"
echo "$_"
: a b
echo "$_"
