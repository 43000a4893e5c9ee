total=0
add() { total=$((total + $1)); }
for n in 1 2 3 4; do add "$n"; done
echo "total $total home $HOME pwd $PWD"
case "$total" in 10) echo ten ;; *) echo other ;; esac
trap 'echo leaving' EXIT
cat <<END
here: $((total * 2))
END
ls missing-file || echo "failed with $?"
exit 7
