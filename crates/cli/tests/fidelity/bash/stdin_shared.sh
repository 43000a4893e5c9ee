# stdin: "1\n2\n3\n4\n"
read -r a
head -c 2
read -r b; echo "$a $b"
bash -c "read -r x; echo \$x"
