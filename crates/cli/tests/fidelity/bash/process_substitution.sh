diff <(printf "a\nb\n") <(printf "a\nc\n")
echo $?
cat <(echo 1) <(echo 2)
while read -r l; do echo "[$l]"; done < <(seq 3)
