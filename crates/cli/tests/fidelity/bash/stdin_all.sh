# stdin: "1\n2\n3\n"
cat
read -r x; echo $?
