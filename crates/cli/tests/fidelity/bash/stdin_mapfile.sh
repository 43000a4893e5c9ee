# stdin: "a\nb\n\nc"
mapfile -t x
echo "${#x[@]} ${x[*]}"
