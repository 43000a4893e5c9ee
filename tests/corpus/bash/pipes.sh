set -eu
printf 'pear\napple\nfig\napple\n' > fruit.txt
sort fruit.txt | uniq -c | sort -rn | awk '{print $2, $1}' | head -n 2
wc -l < fruit.txt | tr -d ' '
grep -c apple fruit.txt
sed 's/apple/lemon/g' fruit.txt | paste -sd, -
echo "done" >&2
